package iptables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func testEntry(addr string, port uint16) *entry {
	return &entry{key: frontend.Key{Addr: netip.MustParseAddr(addr), Port: port, Protocol: model.TCP},
		owner: model.PortName{Port: addr}, to: target{rule: "-g X"}}
}

// chainsOn returns the chains that a packet for a key goes through, and the number of rules in them.
func chainsOn(t *tree, k frontend.Key) (names []string, rules int) {
	for n := t.top; n != nil; {
		names = append(names, n.name)
		rules += len(n.rules())
		i, ok := n.childIndex(k)
		if !ok {
			break
		}
		n = n.children[i]
	}
	return names, rules
}

func TestATreeOfOneChainIsAList(t *testing.T) {
	c := newChains(dp.NAT)
	tr := &tree{chains: c, name: "T", protocol: model.TCP}
	for i := range maxPassed {
		tr.set(testEntry(fmt.Sprint("10.0.0.", i), 80))
	}
	assert.Equal(t, []string{"T"}, slices.Collect(maps.Keys(c.wanted)))
	assert.Contains(t, tr.top.rules()[0], "-d 10.0.0.0/32 -p tcp -m tcp --dport 80 ")
}

func TestATreeIsDividedByPortsAndThenByTheBitsThatDiffer(t *testing.T) {
	c := newChains(dp.NAT)
	tr := &tree{chains: c, name: "T", protocol: model.TCP}
	for i := range 120 {
		tr.set(testEntry(fmt.Sprintf("10.0.%d.1", i), 80)) // the last byte is the same
	}
	for i := range 5 {
		tr.set(testEntry("10.0.0.1", uint16(20000+i)))
	}
	names, _ := chainsOn(tr, testEntry("10.0.7.1", 80).key)
	assert.Equal(t, []string{"T", "T-0-4095", "T-0-255", "T-80-95", "T-80", "T-80.3"}, names)
	assert.Equal(t, []string{"-p tcp -m tcp --dport 0:4095 -g T-0-4095",
		"-p tcp -m tcp --dport 16384:20479 -g T-16384-20479"}, tr.top.rules())
	assert.Equal(t, []string{"-d 0.0.0.0/0.0.3.0 -g T-80.0", "-d 0.0.1.0/0.0.3.0 -g T-80.1",
		"-d 0.0.2.0/0.0.3.0 -g T-80.2", "-d 0.0.3.0/0.0.3.0 -g T-80.3"},
		c.wanted["T-80"].rules())
	assert.Contains(t, c.wanted["T-80.3"].rules()[0], "-d 10.0.3.1/32 -p tcp -m comment", "the port is certain already")
}

func TestChainsThatHaveBecomeSmallAreTakenTogether(t *testing.T) {
	c := newChains(dp.NAT)
	tr := &tree{chains: c, name: "T", protocol: model.TCP}
	var entries []*entry
	for i := range 200 {
		entries = append(entries, testEntry(fmt.Sprint("10.0.0.", i), 80))
		tr.set(entries[i])
	}
	require.Greater(t, len(c.wanted), 5)
	for _, e := range entries[mergeBelow:] {
		tr.remove(e.key, e.owner)
	}
	assert.Equal(t, []string{"T"}, slices.Collect(maps.Keys(c.wanted)))
	assert.Len(t, tr.top.rules(), mergeBelow)
	for _, e := range entries[:mergeBelow] {
		tr.remove(e.key, e.owner)
		tr.remove(e.key, e.owner) // what is not there is no error
	}
	assert.Empty(t, c.wanted)
	assert.True(t, tr.isEmpty())
}

func TestAChangeTouchesFewChains(t *testing.T) {
	c := newChains(dp.NAT)
	tr := &tree{chains: c, name: "T", protocol: model.TCP}
	r := rand.New(rand.NewPCG(1, 0))
	random := func() *entry {
		return testEntry(fmt.Sprintf("10.%d.%d.%d", 96+r.IntN(16), r.IntN(256), r.IntN(256)), 80)
	}
	for range 5000 {
		tr.set(random())
	}
	total := 0
	for range 1000 {
		c.done(c.changes())
		e := random()
		tr.set(e)
		require.LessOrEqual(t, len(c.touched), 10)
		total += len(c.touched)
		c.done(c.changes())
		tr.remove(e.key, e.owner)
		require.LessOrEqual(t, len(c.touched), 10)
	}
	assert.Less(t, total, 1500, "one chain as a rule")
	names := map[string]bool{}
	var collect func(n *node)
	collect = func(n *node) {
		names[n.name] = true
		for _, c := range n.children {
			collect(c)
		}
	}
	collect(tr.top)
	assert.True(t, len(names) == len(c.wanted), "no chain is left that nothing jumps to")
}

// Wherever addresses and ports lie, a packet passes few rules.
func TestNoPacketPassesManyRules(t *testing.T) {
	for name, address := range map[string]func(i int) (string, uint16){
		"addresses in a row": func(i int) (string,
			uint16) {
			return fmt.Sprintf("10.96.%d.%d", i/256, i%256), 80
		},
		"addresses that differ in the first bytes": func(i int) (string,
			uint16) {
			return fmt.Sprintf("10.%d.%d.1", i/256, i%256), 443
		},
		"one address with many ports": func(i int) (string, uint16) {
			return "10.96.0.1",
				uint16(1 + i*13)
		},
		"IPv6 addresses in a row": func(i int) (string, uint16) {
			return fmt.Sprintf("fd00:96::%x", i),
				80
		},
		"IPv6 networks": func(i int) (string, uint16) {
			return fmt.Sprintf("fd00:%x::1", i),
				80
		},
		"addresses and ports": func(i int) (string,
			uint16) {
			return fmt.Sprintf("10.96.0.%d", i%100), uint16(i / 100 * 100)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := &tree{chains: newChains(dp.NAT), name: "T", protocol: model.TCP}
			var entries []*entry
			for i := range 5000 {
				a, port := address(i)
				entries = append(entries, testEntry(a, port))
				tr.set(entries[i])
			}
			for _, e := range entries {
				require.Same(t, e, tr.find(e.key))
				names, rules := chainsOn(tr, e.key)
				require.LessOrEqual(t, len(names), 11)
				require.LessOrEqual(t, rules, 160)
				for _, n := range names {
					require.LessOrEqual(t, len(n), 28)
				}
			}
		})
	}
}

func TestTheDeepestTreeHasRoomForWhatIsBeforeAndAfterIt(t *testing.T) {
	tr := &tree{chains: newChains(dp.NAT), name: "KPL-M-SCTP", protocol: model.SCTP}
	var deepest []string
	for i := range 1 << 16 {
		e := testEntry(fmt.Sprintf("10.0.%d.%d", i/256, i%256), 65535)
		tr.set(e)
	}
	for i := range 256 {
		if names, _ := chainsOn(tr, testEntry(fmt.Sprintf("10.0.%d.7", i), 65535).key); len(names) > len(deepest) {
			deepest = names
		}
	}
	// The kernel follows 15 jumps: to SERVICES and MARKED first, to ALLOW, EXT, CLUSTER and C0, or a group and a slot,
	// last.
	assert.LessOrEqual(t, 2+len(deepest)+4, 15, strings.Join(deepest, " "))
	assert.LessOrEqual(t, len(deepest[len(deepest)-1]+"/16/15"), 28)
}

// Chains by port ranges and chains by addresses must not have names in common, whatever the numbers are.
func TestNoTwoChainsHaveOneName(t *testing.T) {
	for _, port := range []uint16{16, 96, 208, 288, 768, 2048, 3088, 10208, 30208} {
		c := newChains(dp.NAT)
		tr := &tree{chains: c, name: "T", protocol: model.TCP}
		for i := range 2000 {
			tr.set(testEntry(fmt.Sprintf("10.0.%d.%d", i/256, i%256), port))
		}
		for i := range uint16(300) {
			tr.set(testEntry("10.0.0.1", port+i))
		}
		names := map[string]bool{}
		var visit func(n *node)
		visit = func(n *node) {
			require.False(t, names[n.name], n.name)
			names[n.name] = true
			for _, c := range n.children {
				visit(c)
			}
		}
		visit(tr.top)
	}
}
