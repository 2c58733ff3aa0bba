package ipvs

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/bits"

	"sigs.k8s.io/kube-proxy-lib/model"
)

const (
	// defaultMarks leave bits to the kubelet (0x8000) and Cilium (0x0f00).
	defaultMarks = 0xffff00ff
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

// deliveryBit returns the bit of packets to services at addresses of other machines (S63): the highest one of Marks.
// The marks of S27 use the other bits, because a packet may have both.
func (o *Options) deliveryBit() uint32 { return 1 << (bits.Len32(o.Marks) - 1) }

// markFor returns the mark of a port: the one that it had before, unless another program has that, or a new one.
func (p *ports) markFor(name model.PortName, old *port) (uint32, error) {
	if old != nil && old.mark != 0 && !p.isForeign(old.mark) {
		return old.mark, nil
	}
	if !p.hasMark() {
		return 0, fmt.Errorf("no packet mark is left: other service ports and programs have those of Options.Marks %#x, "+
			"and pods of this node and the node itself are served like all other clients", p.options.Marks)
	}
	return p.newMark(name), nil
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

// newMark returns an unused mark: there must be one. It is the same after a restart unless two ports get the same one
// by accident.
func (p *ports) newMark(name model.PortName) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name.String()))
	for m := h.Sum32(); ; m = m*0x9e3779b1 + 1 { // which visits all numbers
		if m := m & p.config.marks; m != 0 && !p.marked[m] && !p.isForeign(m) {
			p.marked[m] = true
			return m
		}
	}
}
