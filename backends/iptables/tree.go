package iptables

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// In a tree of chains a packet gets to the rules for its frontend without walking past all others. Chains divide the
// port numbers by ranges until one number is left, and then the addresses by their bits, beginning with the lowest:
// these differ however a cluster allocates its addresses. iptables matches any bits: 0.0.0.2/0.0.0.3 are the addresses
// that end in binary 10. When few frontends are left, they are in one chain, one after the other, or in groups: see
// group.
//
// Adding or removing a frontend changes one or two chains; occasionally a chain is divided, or several are merged.
const (
	maxPassed     = 96 // rules that a packet may have to walk past in a chain that is not divided
	mergeBelow    = 24 // the chains below a node with at most so many frontends are merged
	portChildren  = 16
	addrBits      = 2 // bits of the address that one level matches
	maxAddrLevels = 4 // nf_tables follows 15 jumps one after the other, and there are others before and after these
)

// tree is a tree of chains for one protocol.
type tree struct {
	chains   *chains
	name     string // of the first chain
	protocol model.Protocol
	top      *node
}

// node is a chain of a tree: it jumps to others, or is a leaf.
type node struct {
	tree        *tree
	name        string
	digit       uint16                // which child of its parent it is
	jump        string                // and the rule in the parent for packets that belong here
	first, last uint16                // packets to these ports get here
	levels      int                   // of addresses above this one
	count       int                   // entries here and below
	leaf        []*entry              // sorted by key
	single      []*entry              // entries of the leaf that are in no group, as of the last regroup
	groups      [maxInline + 1]*group // and the others, by their number of endpoints
	children    []*node               // sorted; nil in a leaf
	shift       int                   // if the children are by address: which bits
}

// noProtocol is that of a tree of addresses alone, for packets from an address to itself.
const noProtocol model.Protocol = 0

func (t *tree) isEmpty() bool { return t.top == nil }

// set adds an entry to the tree, and replaces one with the same key.
func (t *tree) set(e *entry) {
	if t.top == nil {
		t.top = &node{tree: t, name: t.name}
		if t.protocol != noProtocol {
			t.top.last = 65535
		}
		t.chains.put(t.name, t.top)
	}
	t.top.set(e)
}

// remove removes the entry with a key, if it still belongs to owner: the frontend may have another owner by now.
func (t *tree) remove(k frontend.Key, owner model.PortName) {
	if e := t.find(k); e == nil || e.owner != owner {
		return
	}
	if t.top.remove(k); t.top.count == 0 {
		t.top.drop()
		t.top = nil
	}
}

// find returns the entry with a key, or nil.
func (t *tree) find(k frontend.Key) *entry {
	n := t.top
	for n != nil && n.children != nil {
		i, ok := n.childIndex(k)
		if !ok {
			return nil
		}
		n = n.children[i]
	}
	if n != nil {
		if i, ok := n.search(k); ok {
			return n.leaf[i]
		}
	}
	return nil
}

// set puts an entry in, and reports whether there was none with its key.
func (n *node) set(e *entry) (isNew bool) {
	if n.children != nil {
		isNew = n.childFor(e.key).set(e)
	} else if i, ok := n.search(e.key); !ok {
		n.leaf, isNew = slices.Insert(n.leaf, i, e), true
		n.divideOrRegroup()
	} else if !n.leaf[i].equal(e) {
		n.leaf[i] = e
		n.divideOrRegroup()
	}
	if isNew {
		n.count++
	}
	return isNew
}

// remove removes an existing entry.
func (n *node) remove(k frontend.Key) {
	n.count--
	if n.children == nil {
		i, _ := n.search(k)
		n.leaf = slices.Delete(n.leaf, i, i+1)
		n.regroup(byGroup(n.leaf))
		return
	}
	i, _ := n.childIndex(k)
	c := n.children[i]
	if c.remove(k); c.count == 0 {
		c.drop()
		n.children = slices.Delete(n.children, i, i+1)
		n.tree.chains.touch(n.name)
	}
	n.merge()
}

func (n *node) search(k frontend.Key) (int, bool) {
	return slices.BinarySearchFunc(n.leaf, k, func(e *entry, k frontend.Key) int { return e.key.Compare(k) })
}

// digitOf returns which of the children a key belongs to.
func (n *node) digitOf(k frontend.Key) uint16 {
	if n.first < n.last {
		return uint16((int(k.Port) - int(n.first)) / n.portsPerChild())
	}
	return addrDigit(k.Addr, n.shift)
}

func (n *node) portsPerChild() int { return (int(n.last) - int(n.first) + 1) / portChildren }

func addrDigit(a netip.Addr, shift int) uint16 {
	b := a.AsSlice()
	return uint16(b[len(b)-1-shift/8]>>(shift%8)) & (1<<addrBits - 1)
}

// childIndex returns where the child for a key is or would be.
func (n *node) childIndex(k frontend.Key) (int, bool) {
	byDigit := func(c *node, d uint16) int { return cmp.Compare(c.digit, d) }
	return slices.BinarySearchFunc(n.children, n.digitOf(k), byDigit)
}

// childFor returns the child for a key, creating it if necessary.
func (n *node) childFor(k frontend.Key) *node {
	i, ok := n.childIndex(k)
	if ok {
		return n.children[i]
	}
	d := n.digitOf(k)
	c := &node{tree: n.tree, digit: d, first: n.first, last: n.last, levels: n.levels}
	var match string
	if n.first < n.last {
		width := n.portsPerChild()
		c.first = n.first + d*uint16(width)
		c.last = c.first + uint16(width-1)
		ports := strconv.Itoa(int(c.first))
		c.name = n.tree.name + "-" + ports
		if c.first < c.last {
			last := strconv.Itoa(int(c.last))
			c.name += "-" + last
			ports += ":" + last
		}
		match = portMatch(n.tree.protocol, ports)
	} else {
		c.levels++
		c.name = n.name
		if n.levels == 0 {
			c.name += "." // with "-", digits 31 below port 16 would make the name of the chain of ports 16 to 31
		}
		c.name += strconv.Itoa(int(d))
		match = addrMatch(k.Addr.BitLen()/8, n.shift, d)
	}
	c.jump = match + "-g " + c.name
	n.children = slices.Insert(n.children, i, c)
	n.tree.chains.put(c.name, c)
	n.tree.chains.touch(n.name)
	return c
}

// addrMatch matches packets to addresses of so many bytes that have a digit.
func addrMatch(size, shift int, digit uint16) string {
	only := func(bits uint16) netip.Addr {
		b := make([]byte, size)
		b[size-1-shift/8] = byte(bits) << (shift % 8)
		a, _ := netip.AddrFromSlice(b)
		return a
	}
	return "-d " + dp.Masked(only(digit), only(1<<addrBits-1)) + " "
}

// divideOrRegroup updates a leaf that has changed: if packets would have to walk past too many rules in it, it is
// divided.
func (n *node) divideOrRegroup() {
	groups := byGroup(n.leaf)
	if groups.passed() <= maxPassed || !n.canDivide() {
		n.regroup(groups)
		return
	}
	entries := n.leaf
	n.leaf, n.children = nil, []*node{}
	n.regroup(grouped{})
	n.tree.chains.touch(n.name)
	for _, e := range entries {
		n.childFor(e.key).set(e)
	}
}

// canDivide chooses what to divide by: ports, or else the lowest bits in which the addresses are not all the same.
func (n *node) canDivide() bool {
	if n.first < n.last {
		return true
	}
	if n.levels == maxAddrLevels {
		return false
	}
	first := n.leaf[0].key.Addr
	for n.shift = 0; n.shift < first.BitLen(); n.shift += addrBits {
		digit := addrDigit(first, n.shift)
		if slices.ContainsFunc(n.leaf, func(e *entry) bool { return addrDigit(e.key.Addr, n.shift) != digit }) {
			return true
		}
	}
	return false
}

// merge makes a node a leaf, if it has so few entries that it need not be divided again soon.
func (n *node) merge() {
	if n.count > mergeBelow {
		return
	}
	entries := n.gather(nil)
	slices.SortFunc(entries, func(a, b *entry) int { return a.key.Compare(b.key) })
	groups := byGroup(entries)
	if groups.passed() > maxPassed/2 {
		return
	}
	for _, c := range n.children {
		c.drop()
	}
	n.leaf, n.children = entries, nil
	n.regroup(groups)
	n.tree.chains.touch(n.name)
}

func (n *node) gather(entries []*entry) []*entry {
	for _, c := range n.children {
		entries = c.gather(entries)
	}
	return append(entries, n.leaf...)
}

// drop records that a chain and those below it are no longer wanted.
func (n *node) drop() {
	for _, c := range n.children {
		c.drop()
	}
	n.leaf = nil
	n.regroup(grouped{})
	n.tree.chains.drop(n.name)
}

func (n *node) rules() []string {
	var rules []string
	for _, e := range n.single {
		rules = e.rules(rules, n.first < n.last)
	}
	for _, g := range n.groups {
		if g != nil {
			rules = append(rules, "-j "+g.name)
		}
	}
	for _, c := range n.children {
		rules = append(rules, c.jump)
	}
	return rules
}

func (n *node) owners() iter.Seq[model.PortName] { return ownersOf(n.single) }
