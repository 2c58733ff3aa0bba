package iptables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func withEndpoints(e *entry, n int) *entry {
	e.to = target{}
	for i := range n {
		e.to.endpoints = append(e.to.endpoints,
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(e.key.Port), byte(i)}), e.key.Port))
	}
	return e
}

func TestFrontendsWithTheSameNumberOfEndpointsShareTheDraw(t *testing.T) {
	c := newChains(dp.NAT)
	tr := &tree{chains: c, name: "T", protocol: model.TCP}
	var entries []*entry
	for i := range minGroup {
		entries = append(entries, withEndpoints(testEntry(fmt.Sprint("10.0.0.", i), 80), 2))
		tr.set(entries[i])
	}
	tr.set(withEndpoints(testEntry("10.0.0.100", 80), 3))
	assert.Equal(t, []string{"T", "T/2", "T/2/0", "T/2/1"}, slices.Sorted(maps.Keys(c.wanted)))
	assert.Len(t, tr.top.rules(), 4, "three of the one that stands for itself")
	assert.Len(t, c.wanted["T/2/1"].rules(), minGroup)

	c.done(c.changes())
	other := *entries[3]
	other.to.endpoints = slices.Clone(other.to.endpoints)
	other.to.endpoints[1] = netip.MustParseAddrPort("10.9.9.9:80")
	tr.set(&other)
	assert.Equal(t, map[string]bool{"T/2/1": true}, c.touched, "one endpoint is one chain")

	c.done(c.changes())
	tr.remove(entries[0].key, entries[0].owner)
	assert.Equal(t, []string{"T"}, slices.Collect(maps.Keys(c.wanted)), "too few to share")
	assert.Equal(t, []string{"T", "T/2", "T/2/0", "T/2/1"}, slices.Sorted(maps.Keys(c.touched)))
}

// After any changes, the wanted chains are those of a tree that is built anew from the same entries, and all that
// differ were touched.
func TestTouchedChainsAreAllThatChanged(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 0))
	c := newChains(dp.NAT)
	tr := &tree{chains: c, name: "T", protocol: model.TCP}
	table := map[string][]string{}
	have := map[frontend.Key]*entry{}
	for step := range 3000 {
		if step%500 == 0 {
			for k, e := range have { // become few again
				if r.IntN(10) > 0 {
					tr.remove(k, e.owner)
					delete(have, k)
				}
			}
		}
		port := uint16(80)
		if r.IntN(5) == 0 {
			port = uint16(1 + r.IntN(65535))
		}
		e := withEndpoints(testEntry(fmt.Sprint("10.0.0.", r.IntN(250)), port), 1+r.IntN(4))
		if have[e.key] != nil && r.IntN(3) == 0 {
			tr.remove(e.key, e.owner)
			delete(have, e.key)
		} else {
			tr.set(e)
			have[e.key] = e
		}
		b := c.changes()
		for _, ch := range b.Chains {
			table[ch.Name] = ch.Rules
		}
		for _, name := range b.Remove {
			delete(table, name)
		}
		c.done(c.changes())
		require.Len(t, table, len(c.wanted))
		if step%50 == 0 {
			for name, content := range c.wanted {
				require.Equal(t, content.rules(), table[name], name)
			}
			for k, e := range have {
				require.True(t, tr.find(k).equal(e), k)
			}
		}
	}
}
