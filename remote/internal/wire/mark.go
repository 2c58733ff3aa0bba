package wire

import remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"

// Kinds of objects, as indexes of a Mark.
const (
	Services = iota
	EndpointSlices
	Nodes
	ServiceCIDRs
	numKinds
)

// Mark says how new a state is: the resourceVersion of the API server for each kind of object, 0 if it is not known.
// Versions of different kinds are not compared.
type Mark [numKinds]uint64

// MarkOf returns the mark of a message; without one, nothing is known.
func MarkOf(s *remotev1.Seen) Mark {
	return Mark{s.GetServices(), s.GetEndpointSlices(), s.GetNodes(), s.GetServiceCIDRs()}
}

// Since returns the message with the versions that differ from an older mark, nil if there are none.
func (m Mark) Since(old Mark) *remotev1.Seen {
	if m == old {
		return nil
	}
	for kind := range m {
		if m[kind] == old[kind] {
			m[kind] = 0
		}
	}
	return &remotev1.Seen{Services: m[Services], EndpointSlices: m[EndpointSlices], Nodes: m[Nodes],
		ServiceCIDRs: m[ServiceCIDRs]}
}

// Behind reports whether any kind is older than in another mark. Kinds that are not known in one of them are skipped.
func (m Mark) Behind(other Mark) bool {
	for kind := range m {
		if m[kind] != 0 && m[kind] < other[kind] {
			return true
		}
	}
	return false
}

// With returns the mark with the known versions of another one in place of its own.
func (m Mark) With(other Mark) Mark {
	for kind := range m {
		if other[kind] != 0 {
			m[kind] = other[kind]
		}
	}
	return m
}

// Newest returns the newer of two marks, kind by kind.
func (m Mark) Newest(other Mark) Mark {
	for kind := range m {
		m[kind] = max(m[kind], other[kind])
	}
	return m
}
