package conntrack

import (
	"net/netip"
	"slices"
)

// Selection says which flows of a table a pass checks: those that go to a destination, or whose replies come from an
// endpoint. The zero value is all flows.
type Selection struct {
	// Destination and ReplySource are those of [Flow]. Address and port each count only if set: a node port is a
	// Destination without an address.
	Destination, ReplySource netip.AddrPort
}

// matches reports whether a flow is one of those selected.
func (s Selection) matches(f Flow) bool {
	return matches(s.Destination, f.Destination) && matches(s.ReplySource, f.ReplySource)
}

func matches(want, got netip.AddrPort) bool {
	return (!want.Addr().IsValid() || want.Addr() == got.Addr()) && (want.Port() == 0 || want.Port() == got.Port())
}

// maxSelections is how many selections a pass may have. For each the kernel walks its whole table, which with 100,000
// flows takes an eighth of the time of checking all of them here.
const maxSelections = 4

// pending is what the next pass has to look at. The zero value is nothing.
type pending struct {
	all        bool
	selections []Selection
}

func (p *pending) isEmpty() bool { return !p.all && len(p.selections) == 0 }

// add adds the flows of a selection: all, if it is one too many.
func (p *pending) add(s Selection) {
	switch {
	case p.all || slices.Contains(p.selections, s):
	case len(p.selections) == maxSelections:
		p.addAll()
	default:
		p.selections = append(p.selections, s)
	}
}

func (p *pending) addAll() { *p = pending{all: true} }

// take returns what is pending, nil for all flows, and empties it.
func (p *pending) take() []Selection {
	only := p.selections
	*p = pending{}
	return only
}
