package conntrack

import (
	"net/netip"
	"slices"
)

// Selection selects the flows that a pass checks: by destination, or by the source of replies. The zero value selects
// all flows.
type Selection struct {
	// Destination and ReplySource are those of [Flow]. An unset address or port matches any: a node port is a Destination
	// without an address.
	Destination, ReplySource netip.AddrPort
}

// matches reports whether a flow is selected.
func (s Selection) matches(f Flow) bool {
	return matches(s.Destination, f.Destination) && matches(s.ReplySource, f.ReplySource)
}

func matches(want, got netip.AddrPort) bool {
	return (!want.Addr().IsValid() || want.Addr() == got.Addr()) && (want.Port() == 0 || want.Port() == got.Port())
}

// maxSelections is the maximum number of selections of a pass. For each the kernel walks its whole table: with 100,000
// flows that takes an eighth of the time of checking them all here.
const maxSelections = 4

// pending selects the flows for the next pass. The zero value selects none.
type pending struct {
	all        bool
	selections []Selection
}

func (p *pending) isEmpty() bool { return !p.all && len(p.selections) == 0 }

// add adds a selection. If there are too many, it selects all flows.
func (p *pending) add(s Selection) {
	switch {
	case p.all || slices.Contains(p.selections, s):
	case len(p.selections) == maxSelections:
		p.addAll()
	default:
		p.selections = append(p.selections, s)
	}
}

// addDestinations adds the flows to a port at some addresses.
func (p *pending) addDestinations(addresses []netip.Addr, port uint16) {
	for _, a := range addresses {
		if p.all {
			return
		}
		p.add(Selection{Destination: netip.AddrPortFrom(a, port)})
	}
}

// addNodePort adds the flows to a node port, unless it is 0.
func (p *pending) addNodePort(port uint16) {
	if port != 0 {
		p.add(Selection{Destination: netip.AddrPortFrom(netip.Addr{}, port)})
	}
}

func (p *pending) addAll() { *p = pending{all: true} }

// take returns the pending selections, nil for all flows, and resets them.
func (p *pending) take() []Selection {
	only := p.selections
	*p = pending{}
	return only
}
