package localstate

import (
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// candidate is one entry of a slice that may serve a service port: an endpoint with a resolved port number.
type candidate struct {
	target netip.AddrPort
	slice  *sliceIntake
	at     int32 // the endpoint's place in the slice
	port   int32 // the port's place in the slice
	flags  endpointFlags
	loses  bool // another entry with the same target is preferred (S17)
}

// place returns where the endpoint is.
func (c *candidate) place() place { return c.slice.places[c.at].Value() }

// settle picks one of several entries with the same target and marks the others (S17). The entries are ordered by slice
// name, then by port and by place in the slice. Each slice is represented by its last entry that is not terminating or,
// if all are, by its first. (Kube-proxy's choice among slices depends on map order.)
func settle(same []candidate) {
	winner := -1
	for i := 0; i < len(same); {
		own := i
		for i++; i < len(same) && same[i].slice == same[own].slice; i++ {
			if !same[i].flags.has(flagTerminating) {
				own = i
			}
		}
		if winner < 0 || same[own].preferredTo(&same[winner]) {
			winner = own
		}
	}
	for i := range same {
		same[i].loses = i != winner
	}
}

// preferredTo is S17 across slices: a live entry wins over a terminating one, then a ready one over an unready one,
// then the one of the slice whose name comes first, which is o's.
func (c *candidate) preferredTo(o *candidate) bool {
	terminating, oTerminating := c.flags.has(flagTerminating), o.flags.has(flagTerminating)
	if terminating != oTerminating {
		return !terminating
	}
	return c.flags.has(flagReady) && !o.flags.has(flagReady)
}

// handedOver reports whether a candidate is passed to the receiver: if it is in a set; if it serves a UDP port, so that
// its flows do not count as stale (S40); and while it drains, if that is enabled.
func (c *candidate) handedOver(o *Options, sets model.EndpointSets, protocol model.Protocol) bool {
	switch {
	case sets != 0:
		return true
	case c.loses:
		return false
	}
	return keptWithoutSets(protocol, c.flags.has(flagServing), c.flags.draining(), o.DrainingEndpoints)
}

// keptWithoutSets reports whether an endpoint that is in no set is passed to the receiver: if it serves a UDP port
// (S40), and while it drains, if that is enabled.
func keptWithoutSets(protocol model.Protocol, serving, draining, wantsDraining bool) bool {
	return protocol == model.UDP && serving || wantsDraining && draining
}

// model returns the candidate as a model.Endpoint.
func (c *candidate) model(port model.PortName, sets model.EndpointSets) model.Endpoint {
	p := c.place()
	return model.Endpoint{
		Port:        port,
		Target:      c.target,
		Node:        p.node,
		Sets:        sets,
		Local:       c.flags.has(flagLocal),
		Ready:       c.flags.has(flagReady),
		Serving:     c.flags.has(flagServing),
		Terminating: c.flags.has(flagTerminating),
		Details:     p.details,
	}
}
