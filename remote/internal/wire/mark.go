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

// Mark says how new a state is: for each kind of object a resourceVersion of the API server, 0 if it is not known.
// Versions of different kinds are not compared.
type Mark [numKinds]uint64

// MarkOf returns what a message says; nothing is known without one.
func MarkOf(s *remotev1.Seen) Mark {
	return Mark{s.GetServices(), s.GetEndpointSlices(), s.GetNodes(), s.GetServiceCIDRs()}
}

// Since returns the message of what differs from an older mark, nil if nothing does.
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

// Behind reports whether a kind is older than in another mark. What is not known in one of them is not compared.
func (m Mark) Behind(other Mark) bool {
	for kind := range m {
		if m[kind] != 0 && m[kind] < other[kind] {
			return true
		}
	}
	return false
}

// With returns the mark with what another one knows put over it.
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
