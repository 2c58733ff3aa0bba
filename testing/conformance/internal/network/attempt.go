package network

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// Attempt is a connection to be tried: what the oracle is asked about, and the place where it really starts.
type Attempt struct {
	oracle.Flow
	from Place
	// About describes the flow in the words of the case, for messages.
	About string
	// Ports is where the source port comes from; zero: anywhere.
	Ports PortBand
	// DropIsRight shortens the wait to Patience.Quiet.
	DropIsRight bool
}

// FlowTo returns the flow from a place, with its own address, to another address. what describes that, for messages.
func (p Place) FlowTo(to netip.AddrPort, protocol model.Protocol, what string) Attempt {
	return Attempt{from: p, About: p.Name + " to " + what, Flow: oracle.Flow{From: p.Kind,
		Source: p.Addr(model.FamilyOf(to.Addr())), Destination: to, Protocol: protocol}}
}

func (f Attempt) String() string {
	if f.About == "" {
		return f.Flow.String()
	}
	return fmt.Sprintf("%v (%s)", f.Flow, f.About)
}

// PortBand is a part of the port numbers.
type PortBand struct{ first, last uint16 }
