package network

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// Attempt is a connection to be tried: its flow, and the host where it starts.
type Attempt struct {
	oracle.Flow
	from Host
	// About describes the flow in the words of the case, for messages.
	About string
	// Ports restricts the source port; zero means any.
	Ports PortBand
	// DropIsRight shortens the wait to Timeouts.Quiet, because no answer is expected.
	DropIsRight bool
}

// FlowTo returns the flow from a host's own address to another address. what describes the destination in messages.
func (h Host) FlowTo(to netip.AddrPort, protocol model.Protocol, what string) Attempt {
	return Attempt{from: h, About: h.Name + " to " + what, Flow: oracle.Flow{From: h.Kind,
		Source: h.Addr(model.FamilyOf(to.Addr())), Destination: to, Protocol: protocol}}
}

func (f Attempt) String() string {
	if f.About == "" {
		return f.Flow.String()
	}
	return fmt.Sprintf("%v (%s)", f.Flow, f.About)
}

// PortBand is a range of port numbers.
type PortBand struct{ first, last uint16 }
