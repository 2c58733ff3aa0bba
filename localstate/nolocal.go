package localstate

import "sigs.k8s.io/kube-proxy-lib/model"

// NoLocalEndpoints counts the service ports whose traffic policy is Local and that have usable endpoints, but none on
// this node. Traffic under that policy is dropped here (S25), although it is served elsewhere.
type NoLocalEndpoints struct {
	// Internal and External are the counts for the internal and the external traffic policy. A port may count in both.
	Internal, External model.PerFamily[int]
}

// noLocalPorts has the counts of one service, by family.
type noLocalPorts struct{ internal, external model.PerFamily[uint16] }

func (n *NoLocalEndpoints) add(o noLocalPorts, sign int) {
	for _, f := range model.Families() {
		*n.Internal.At(f) += sign * int(*o.internal.At(f))
		*n.External.At(f) += sign * int(*o.external.At(f))
	}
}

// NoLocalEndpoints returns the counts as of the last Flush.
func (s *State) NoLocalEndpoints() NoLocalEndpoints { return s.noLocal }

// count counts a port with a Local policy that has endpoints elsewhere, but none on this node.
func (n *noLocalPorts) count(f model.Family, routes model.Routes, all *counts) {
	if !all.any() || all.localReady > 0 || all.localDraining > 0 {
		return
	}
	if routes.ClusterIP.Endpoints == model.LocalSet {
		*n.internal.At(f)++
	}
	if routes.External.Endpoints == model.LocalSet {
		*n.external.At(f)++
	}
}
