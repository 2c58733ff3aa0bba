package iptables

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// A tree of chains leads a packet to the rules for its frontend without passing by those of all others. Chains
// divide the port numbers by ranges until one number is left, and then the addresses by their bits, from the lowest one
// on: these are different everywhere, however a cluster's addresses are handed out. iptables matches any bits:
// 0.0.0.2/0.0.0.3 are the addresses that end in binary 10. Where few frontends are left they stand in one chain, one
// after the other, or in groups: see group.
//
// A frontend that comes or goes changes one or two chains; now and then a chain is divided, or several are merged.
const (
	maxPassed     = 96 // rules that a packet may have to pass by in a chain that is not divided
	mergeBelow    = 24 // at most so many frontends below a node for its chains to be merged
	portChildren  = 16
	addrBits      = 2 // bits of the address that one level looks at
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
	first, last uint16   // the ports that lead here
	levels      int      // of addresses above this one
	count       int      // entries here and below
	leaf        []*entry // sorted by key
	single      []*entry // entries of the leaf that are in no group, as of the last regroup
	groups      []*group // and the others
	children    []child  // sorted; nil in a leaf
	shift       int      // if the children are by address: which bits
}

type child struct {
	digit uint16
	*node
}

func newTree(c *chains, name string, p model.Protocol) *tree {
	return &tree{chains: c, name: name, protocol: p}
}

// noProtocol is that of a tree of addresses alone, for packets from an address to itself.
const noProtocol model.Protocol = 0

func (t *tree) isEmpty() bool { return t.top == nil }

// set puts an entry into the tree, in the place of one with the same key.
func (t *tree) set(e *entry) {
	if t.top == nil {
		t.top = &node{tree: t, name: t.name}
		if t.protocol != noProtocol {
			t.top.last = 65535
		}
		t.chains.put(t.name, t.top)
	}
	have := t.top.find(e.key)
	if have == nil {
		t.top.insert(e)
	} else if !have.equal(e) {
		n := t.top.leafFor(e.key)
		i, _ := n.search(e.key)
		n.leaf[i] = e
		n.divideOrRegroup()
	}
}

// remove removes the entry with a key, if it still belongs to owner: the frontend may have another one meanwhile.
func (t *tree) remove(k frontend.Key, owner model.PortName) {
	if e := t.top.find(k); e == nil || e.owner != owner {
		return
	}
	if t.top.remove(k); t.top.count == 0 {
		t.top.drop()
		t.top = nil
	}
}

// insert adds an entry that is not there.
func (n *node) insert(e *entry) {
	n.count++
	if n.children != nil {
		n.childFor(e.key).insert(e)
		return
	}
	i, _ := n.search(e.key)
	n.leaf = slices.Insert(n.leaf, i, e)
	n.divideOrRegroup()
}

// remove takes out an entry that is there.
func (n *node) remove(k frontend.Key) {
	n.count--
	if n.children == nil {
		i, _ := n.search(k)
		n.leaf = slices.Delete(n.leaf, i, i+1)
		n.regroup()
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

func (n *node) leafFor(k frontend.Key) *node {
	for n != nil && n.children != nil {
		n = n.existingChild(k)
	}
	return n
}

// find returns the entry with a key, or nil.
func (n *node) find(k frontend.Key) *entry {
	if n = n.leafFor(k); n != nil {
		if i, ok := n.search(k); ok {
			return n.leaf[i]
		}
	}
	return nil
}

// digit tells which of the children a key belongs to.
func (n *node) digit(k frontend.Key) uint16 {
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
	byDigit := func(c child, d uint16) int { return cmp.Compare(c.digit, d) }
	return slices.BinarySearchFunc(n.children, n.digit(k), byDigit)
}

// existingChild returns the child for a key, or nil.
func (n *node) existingChild(k frontend.Key) *node {
	if n.children != nil {
		if i, ok := n.childIndex(k); ok {
			return n.children[i].node
		}
	}
	return nil
}

// childFor returns the child for a key, made if need be.
func (n *node) childFor(k frontend.Key) *node {
	i, ok := n.childIndex(k)
	if ok {
		return n.children[i].node
	}
	d := n.digit(k)
	c := &node{tree: n.tree, first: n.first, last: n.last, levels: n.levels}
	if n.first < n.last {
		width := n.portsPerChild()
		c.first = n.first + d*uint16(width)
		c.last = c.first + uint16(width-1)
		c.name = n.tree.name + "-" + strconv.Itoa(int(c.first))
		if c.first < c.last {
			c.name += "-" + strconv.Itoa(int(c.last))
		}
	} else {
		c.levels++
		c.name = n.name
		if n.levels == 0 {
			c.name += "." // "-" would make of port 16 and the digits 31 the name of the chain of ports 16 to 31
		}
		c.name += strconv.Itoa(int(d))
	}
	n.children = slices.Insert(n.children, i, child{d, c})
	n.tree.chains.put(c.name, c)
	n.tree.chains.touch(n.name)
	return c
}

// divideOrRegroup updates a leaf that has changed: if packets would have to pass by too many rules in it, it is
// divided.
func (n *node) divideOrRegroup() {
	if passed(n.leaf) <= maxPassed || !n.canDivide() {
		n.regroup()
		return
	}
	entries := n.leaf
	n.leaf, n.children = nil, []child{}
	n.regroup()
	n.tree.chains.touch(n.name)
	for _, e := range entries {
		n.childFor(e.key).insert(e)
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
	if passed(entries) > maxPassed/2 {
		return
	}
	slices.SortFunc(entries, func(a, b *entry) int { return a.key.Compare(b.key) })
	for _, c := range n.children {
		c.drop()
	}
	n.leaf, n.children = entries, nil
	n.regroup()
	n.tree.chains.touch(n.name)
}

func (n *node) gather(entries []*entry) []*entry {
	for _, c := range n.children {
		entries = c.gather(entries)
	}
	return append(entries, n.leaf...)
}

// drop says that a chain and those below it are not wanted any more.
func (n *node) drop() {
	for _, c := range n.children {
		c.drop()
	}
	n.leaf = nil
	n.regroup()
	n.tree.chains.drop(n.name)
}

func (n *node) rules() []string {
	var rules []string
	for _, e := range n.single {
		rules = e.rules(rules, n.first < n.last)
	}
	for _, g := range n.groups {
		rules = append(rules, g.jump())
	}
	for _, c := range n.children {
		rules = append(rules, n.jumpTo(c))
	}
	return rules
}

// jumpTo returns the rule for packets that belong to a child.
func (n *node) jumpTo(c child) string {
	if n.first < n.last {
		ports := strconv.Itoa(int(c.first))
		if c.first < c.last {
			ports += ":" + strconv.Itoa(int(c.last))
		}
		return portMatch(n.tree.protocol, ports) + "-g " + c.name
	}
	size := n.anyAddr().BitLen() / 8
	value := bitsOfAddr(size, n.shift, c.digit)
	return "-d " + dp.Masked(value, bitsOfAddr(size, n.shift, 1<<addrBits-1)) + " -g " + c.name
}

// bitsOfAddr returns an address of which only the bits of one level are set.
func bitsOfAddr(size, shift int, digit uint16) netip.Addr {
	b := make([]byte, size)
	b[size-1-shift/8] = byte(digit) << (shift % 8)
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (n *node) anyAddr() netip.Addr {
	for n.children != nil {
		n = n.children[0].node
	}
	return n.leaf[0].key.Addr
}

func (n *node) owners() iter.Seq[model.PortName] { return ownersOf(n.single) }
