package ipvs

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/bits"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

const (
	// defaultMarks leave bits to the kubelet (0x8000) and Cilium (0x0f00).
	defaultMarks = 0x7fff00ff
	// minMarkBits is how many bits Options.Marks has at least.
	minMarkBits = 8
)

// checkMarks fills in the default of Options.Marks, and returns what is wrong with it.
func (o *Options) checkMarks(masquerade uint32) error {
	if o.Marks == 0 {
		o.Marks = defaultMarks &^ masquerade
		return nil
	}
	var errs []error
	if o.Marks&masquerade != 0 {
		errs = append(errs, fmt.Errorf("marks: %#x contains masqueradeMark %#x", o.Marks, masquerade))
	}
	if n := bits.OnesCount32(o.Marks); n < minMarkBits {
		errs = append(errs, fmt.Errorf("marks: %#x has %d bits set, needs at least %d", o.Marks, n, minMarkBits))
	}
	return errors.Join(errs...)
}

// marks are the packet marks of a port's virtual servers for sources with a backend set different from all others', 0
// for none (S27).
type marks struct{ pod, node uint32 }

// setMarks gives a port the marks that it needs: one for each kind of source whose set is not that of all others. Marks
// of masqueraded sources have the masquerade bit, too, because IPVS compares the whole mark. If none is left, these
// sources are served like all others. A port keeps the mark that it had before.
func (p *ports) setMarks(c *frontend.Port, own, old *port) {
	delete(p.unmarked, c.Name)
	r := c.RoutesOf(frontend.ExternalIP)
	differs := func(route model.Route) bool { return !route.IsZero() && route.Endpoints != r.Other.Endpoints }
	if r.Other.IsZero() || !differs(r.FromPod) && !differs(r.FromNode) {
		return
	}
	if old != nil && old.mark != 0 && !p.isForeign(old.mark) {
		own.mark = old.mark
	} else if own.mark = p.newMark(c.Name); own.mark == 0 {
		p.unmarked[c.Name] = true
		return
	}
	of := func(route model.Route) uint32 {
		switch {
		case !differs(route):
			return 0
		case route.Masquerade == model.MasqueradeNever:
			return own.mark
		}
		return own.mark | p.config.mark
	}
	own.marks = marks{pod: of(r.FromPod), node: of(r.FromNode)}
}

// hasMark reports whether there is an unused mark.
func (p *ports) hasMark() bool {
	foreign := map[uint32]bool{}
	for m := range p.foreign {
		if m &= p.config.marks; m != 0 && !p.marked[m] && p.isForeign(m) {
			foreign[m] = true
		}
	}
	return len(p.marked)+len(foreign) < 1<<bits.OnesCount32(p.config.marks)-1
}

// isForeign reports whether another program has a virtual server by a mark, or by the same with the masquerade bit.
func (p *ports) isForeign(mark uint32) bool { return p.foreign[mark] || p.foreign[mark|p.config.mark] }

// avoid gives other marks to ports with one by which another program has a virtual server, among those that have just
// been tried: that is never taken over. It reports whether there are any.
func (p *ports) avoid(c *frontend.Changes, tried []*server) bool {
	var names []model.PortName
	for _, s := range tried {
		if s.blocked && s.key.Mark != 0 && s.owner != nil {
			p.foreign[s.key.Mark] = true
			names = append(names, s.owner.name)
		}
	}
	for _, name := range names {
		p.add(c.Port(name))
	}
	return len(names) > 0
}

// newMark returns an unused mark, 0 if there is none. It is the same after a restart unless two ports get the same one
// by accident.
func (p *ports) newMark(name model.PortName) uint32 {
	if !p.hasMark() {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(name.String()))
	for m := h.Sum32(); ; m = m*0x9e3779b1 + 1 { // which visits all numbers
		if m := m & p.config.marks; m != 0 && !p.marked[m] && !p.isForeign(m) {
			p.marked[m] = true
			return m
		}
	}
}

// retryUnmarked tries again to give marks to ports without.
func (p *ports) retryUnmarked(c *frontend.Changes) {
	if !p.hasMark() {
		return
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.unmarked), model.PortName.Compare) {
		p.add(c.Port(name))
	}
}

// refuseUnmarked tells the table which service ports have no marks.
func (p *ports) refuseUnmarked(c *frontend.Changes) {
	for name := range p.unmarked {
		pc := c.Port(name)
		pc.Refuse(pc.After, fmt.Errorf("no packet mark is left: other service ports and programs have those of "+
			"Options.Marks %#x, and pods of this node and the node itself are served like all other clients", p.config.marks))
	}
}
