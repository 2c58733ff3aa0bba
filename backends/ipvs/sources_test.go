package ipvs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func restrictedService(name string, ip, ranges int) *model.Service {
	s := fm.Service("default/"+name).ClusterIP(fmt.Sprint("10.96.9.", ip)).LoadBalancerIP(fmt.Sprint("203.0.113.", ip)).
		Port("a", 80).Port("b", 81)
	for i := range ranges {
		s.SourceRange(fmt.Sprintf("100.0.%d.0/24", 2*i))
	}
	return s.Build()
}

func TestSourceRangesAreThereOnceForAllPortsAndServices(t *testing.T) {
	for _, n := range []int{1, 32, 33} {
		k := newKernel(t)
		b := k.start(t)
		put(t, b, fm.Node("node-1").Build(), restrictedService("x", 1, n), restrictedService("y", 2, n))
		lists := func() [2]int {
			table := k.table(model.IPv4)
			return [2]int{strings.Count(table, "chain sources-"), strings.Count(table, "set ranges-")}
		}
		require.Equal(t, [2]int{1, n / 33}, lists())
		before := k.table(model.IPv4)
		assert.Equal(t, n, strings.Count(before, "100.0."))

		require.NoError(t, b.Close())
		b = k.start(t)
		applied := k.nft.Applied()
		put(t, b, fm.Node("node-1").Build(), restrictedService("x", 1, n), restrictedService("y", 2, n))
		assert.Equal(t, applied, k.nft.Applied(), "a restart finds them")

		table, err := k.nft.ReadTable(t.Context(), nft.TableKey{Family: model.IPv4, Name: tableName}, nil)
		require.NoError(t, err)
		tx := nft.NewTransaction(table.Key)
		for name, s := range table.Sets {
			if strings.HasPrefix(name, "ranges-") {
				set := &nft.Set{Name: name, Key: []nft.Field{nft.SourceAddr}, Interval: true}
				tx.DeleteElements(set, s.Elements[5:7]...)
			}
		}
		for name := range table.Chains {
			if strings.HasPrefix(name, "sources-") {
				tx.FlushChain(name)
			}
		}
		require.NoError(t, k.nft.ApplyUnnoticed(tx))
		b.ForceResync()
		put(t, b)
		assert.Equal(t, before, k.table(model.IPv4), "and repairs them")

		put(t, b, restrictedService("x", 1, 0))
		assert.Equal(t, [2]int{1, n / 33}, lists(), "the other still has it")
		put(t, b, restrictedService("y", 2, 0))
		assert.Equal(t, [2]int{}, lists())
		assert.NotContains(t, k.table(model.IPv4), "restricted-")
	}
}
