package iptables

import (
	"slices"
	"strings"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
)

// split divides the changes of a table that name more chains than most into several batches, to be applied in this
// order. One of them makes all changes that packets notice. Before it come the new chains, to which no active chain
// jumps yet, each after those that it jumps to. After it come the removals of chains to which nothing jumps any more.
func (c *chains) split(b dp.TableBatch, most int) []dp.TableBatch {
	total := len(b.Remove)
	for i := range b.Chains {
		total += names(&b.Chains[i])
	}
	if total <= most || c.unreadable {
		return []dp.TableBatch{b}
	}
	at := dp.TableBatch{Table: b.Table, Delete: b.Delete, Insert: b.Insert}
	come := map[string]*dp.Chain{}
	for i, chain := range b.Chains {
		if _, ok := c.there[chain.Name]; ok {
			at.Chains = append(at.Chains, chain)
		} else {
			come[chain.Name] = &b.Chains[i]
		}
	}
	var parts []dp.TableBatch
	room := 0
	var add func(chain *dp.Chain)
	add = func(chain *dp.Chain) {
		delete(come, chain.Name)
		for _, rule := range chain.Rules {
			if next := come[dp.Target(rule)]; next != nil {
				add(next)
			}
		}
		if room <= 0 {
			parts, room = append(parts, dp.TableBatch{Table: b.Table}), most
		}
		part := &parts[len(parts)-1]
		part.Chains = append(part.Chains, *chain)
		room -= names(chain)
	}
	for i := range b.Chains {
		if chain := come[b.Chains[i].Name]; chain != nil {
			add(chain)
		}
	}
	if len(b.Remove) <= most {
		at.Remove = b.Remove
		return append(parts, at)
	}
	return slices.Concat(parts, []dp.TableBatch{at}, dp.Removals(b.Table, b.Remove, most))
}

// names returns how many names of our chains iptables-restore reads for a chain.
func names(chain *dp.Chain) int {
	n := 1
	for _, rule := range chain.Rules {
		if strings.HasPrefix(dp.Target(rule), chainPrefix) {
			n++
		}
	}
	return n
}
