package localstate

import "sigs.k8s.io/kube-proxy-lib/model"

// NoLocalEndpoints counts the service ports whose traffic policy is Local and that have usable endpoints, but none on
// this node. Traffic under that policy is dropped here (S25), although it is served elsewhere.
type NoLocalEndpoints struct {
	// InternalIPv4 and InternalIPv6 are about the internal traffic policy, ExternalIPv4 and ExternalIPv6 about the
	// external one. A port may count in several.
	InternalIPv4, InternalIPv6, ExternalIPv4, ExternalIPv6 int
}

// noLocalPorts has the counts of one service, by family.
type noLocalPorts struct{ internal, external [2]uint16 }

func (n *NoLocalEndpoints) add(o noLocalPorts, sign int) {
	n.InternalIPv4 += sign * int(o.internal[0])
	n.InternalIPv6 += sign * int(o.internal[1])
	n.ExternalIPv4 += sign * int(o.external[0])
	n.ExternalIPv6 += sign * int(o.external[1])
}

// NoLocalEndpoints returns the counts as of the last Flush.
func (s *State) NoLocalEndpoints() NoLocalEndpoints { return s.noLocal }

// count counts a port with a Local policy that has endpoints elsewhere, but none on this node.
func (n *noLocalPorts) count(f model.Family, routes model.Routes, all *counts) {
	if !all.any() || all.localReady > 0 || all.localDraining > 0 {
		return
	}
	if routes.ClusterIP.Endpoints == model.LocalSet {
		n.internal[familyIndex(f)]++
	}
	if routes.External.Endpoints == model.LocalSet {
		n.external[familyIndex(f)]++
	}
}
