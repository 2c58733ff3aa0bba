package frontend

import (
	"fmt"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// The cost of a contest is the number of comparisons of claims, where each of n services asks for m keys. A claim is
// found among n in log2(n) steps.
func TestWhoGoesFromAContestComparesOnlyItsOwnClaims(t *testing.T) {
	const addresses, ports = 20, 10
	const m = addresses*ports + ports // and a cluster IP
	for _, n := range []int{2, 10, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			objects := contestants(n, addresses, ports)
			table, _ := newReader(t, objects)
			compared := func(what string, most int, change func()) {
				owners := &table.families[0].owners
				before := owners.compared
				change()
				require.NoError(t, table.Sync(quiet(t)))
				assert.LessOrEqual(t, owners.compared-before, most, what)
			}
			name := func(i int) model.ServiceName { return objects[i].(*model.Service).Name }
			log := bits.Len(uint(n))
			compared("one in the middle goes", m*(log+1), func() { table.DeleteService(name(n / 2)) })
			compared("it comes back", m*n*(log+1), func() { table.SetService(objects[n/2].(*model.Service)) })
			compared("the owner goes", m*(log+2), func() { table.DeleteService(name(0)) })
			compared("a label changes", 0, func() {
				s := *objects[n-1].(*model.Service)
				s.Labels = map[string]string{"a": "b"}
				table.SetService(&s)
			})
			table, _ = newReader(t, nil)
			compared("all come", 2*n*m*log, func() {
				for _, o := range objects {
					table.SetService(o.(*model.Service))
				}
			})
			compared("all go", n*m*(log+2), func() {
				for i := range objects {
					table.DeleteService(name(i))
				}
			})
		})
	}
}
