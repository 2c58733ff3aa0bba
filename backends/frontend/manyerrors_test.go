package frontend

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// manyRefused is a table with a service whose ports are refused: those with an even number by the dataplane, the others
// because they exceed a limit.
type manyRefused struct {
	*Table
	t       *testing.T
	accepts bool // the dataplane accepts all
}

func newManyRefused(t *testing.T, ports int) *manyRefused {
	r := &manyRefused{t: t}
	var err error
	r.Table, err = New(Options{Families: []model.Family{model.IPv4}, Limits: Limits{Service: Budget{Destinations: 1}},
		Apply: func(_ context.Context, c *Changes) error {
			for p := range c.Ports() {
				if p.After != nil && p.After.Name.Service.Namespace == "evil" && !r.accepts {
					p.Refuse(p.After, errors.New("refused"))
				}
			}
			return nil
		}})
	require.NoError(t, err)
	b := fakemodel.Service("evil/many").ClusterIP("10.96.0.1")
	for i := range ports {
		b.Port(fmt.Sprintf("p%05d", i), uint16(i+1))
		for n := range 2 * (i % 2) {
			r.SetEndpoint(endpointOf("evil/many", fmt.Sprintf("p%05d", i), n))
		}
	}
	r.SetService(b.Build())
	r.SetService(fakemodel.Service("prod/web").ClusterIP("10.96.0.2").Port("http", 80).Build())
	return r
}

func endpointOf(service, port string, n int) *model.Endpoint {
	return fakemodel.Endpoint(fmt.Sprintf("%s:%s/TCP", service, port), fmt.Sprintf("10.1.0.%d:80", n)).Build()
}

// sync returns the steps and the allocated bytes of a Sync in which so many ports are refused.
func (r *manyRefused) sync(refused int) (steps, bytes int) {
	r.t.Helper()
	f := r.families[0]
	count := func() int { return f.ledger.errors.steps + f.excesses.errors.steps }
	var before, after runtime.MemStats
	steps = count()
	runtime.ReadMemStats(&before)
	err := r.Sync(r.t.Context())
	runtime.ReadMemStats(&after)
	require.Len(r.t, sink.PortErrors(err), refused)
	return count() - steps, int(after.TotalAlloc - before.TotalAlloc)
}

// What refused ports cost is linear in their number when one of them changes, or all do, and nothing when others
// change.
func TestWhatManyRefusedPortsCost(t *testing.T) {
	type cost struct{ all, more, less, others, otherBytes, none int }
	costs := func(n int) (c cost) {
		r := newManyRefused(t, n)
		c.all, _ = r.sync(n)
		var bytes int
		for i := range 3 { // the first one still frees what the Sync before has used
			r.SetEndpoint(endpointOf("prod/web", "http", i))
			c.others, bytes = r.sync(n)
			c.otherBytes = bytes
			r.DeleteEndpoint(endpointOf("prod/web", "http", i).Key())
			r.sync(n)
		}
		for _, port := range []int{1, n/2 + 1, n - 1} { // it exceeds the limit
			r.DeleteEndpoint(endpointOf("evil/many", fmt.Sprintf("p%05d", port), 1).Key())
			r.accepts = true
			less, _ := r.sync(n - 1)
			r.SetEndpoint(endpointOf("evil/many", fmt.Sprintf("p%05d", port), 1))
			more, _ := r.sync(n)
			r.accepts = false
			c.less, c.more = max(c.less, less), max(c.more, more)
		}
		r.accepts = true
		r.DeleteService(model.ServiceName{Namespace: "evil", Name: "many"})
		c.none, _ = r.sync(0)
		return c
	}
	one, two := costs(1000), costs(2000)
	assert.GreaterOrEqual(t, one.all, 1000, "each error is listed")
	assert.LessOrEqual(t, two.all, 2*one.all*5/4, "comparisons of sorting are a bit more than linear")
	assert.LessOrEqual(t, two.more, 2*one.more+10)
	assert.LessOrEqual(t, two.less, 2*one.less+10)
	assert.Positive(t, one.more)
	assert.Zero(t, two.others)
	assert.LessOrEqual(t, two.otherBytes, one.otherBytes+256)
	assert.Zero(t, two.none, "an empty list")
}
