package nft

import (
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
)

// Chains that service ports share stay when the last port leaves them, because another one is likely to need them soon,
// and they are few: one for each number of endpoints, up to maxSharedSlots, each way to masquerade and each of the slot
// maps. But with external policy Local a chain is for a pair of numbers, of which there are hundreds of thousands, and
// at every commit the kernel walks all chains. So of these only some stay.

// maxIdle is how many chains for pairs of numbers may stay that no service port uses.
const maxIdle = 1024

// mixedChains returns the shared chains for pairs of numbers that traffic passes on its way through a chain.
func mixedChains(chain string) (names []string) {
	inner, onNode := strings.CutPrefix(chain, onNodePrefix)
	if rest, restricted := strings.CutPrefix(chain, rules.RestrictedPrefix); restricted {
		_, inner, _ = strings.Cut(rest, "-") // changeSources counts the outer one
	}
	if !strings.HasPrefix(strings.TrimPrefix(inner, nodePortPrefix), mixedPrefix) {
		return nil
	}
	if onNode {
		names = append(names, chain)
	}
	return append(names, inner)
}

// countMixed counts the service ports that use chains for pairs of numbers.
func (t *table) countMixed(before, after *side) {
	for kind := range numKinds {
		was, is := before.kinds[kind].chain, after.kinds[kind].chain
		if was == is {
			continue
		}
		for _, name := range mixedChains(is) {
			t.uses.Add(name)
			delete(t.idle, name)
		}
		for _, name := range mixedChains(was) {
			if t.uses.Remove(name) {
				t.idle[name] = true
			}
		}
	}
}

// removeIdle plans to remove all chains that nothing uses, once there are many.
func (p *plan) removeIdle() {
	t := p.base
	if len(t.idle) <= maxIdle {
		return
	}
	p.goneChains = append(p.goneChains, slices.Sorted(maps.Keys(t.idle))...)
	maps.DeleteFunc(t.names, func(_ actions, name string) bool { return t.idle[name] })
	t.idle = map[string]bool{}
}
