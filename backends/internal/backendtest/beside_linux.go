package backendtest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// BesideTenants measures the change of bystanders' endpoints next to a tenant, for each pair of dimensions of
// [Tenants.Pairs], on the dataplane of a backend that open makes. It reports the processor time of such a change, of
// bystanders without session affinity; by how much that exceeds the time without the tenant, measured before in the
// same run, and the same of a bystander with session affinity; and the milliseconds that it takes to add, change (among
// other things, session affinity is switched off) and remove the tenant. Nothing fails: the kernel's time depends on
// the machine, so compare pairs.
func BesideTenants(b *testing.B, open func(*testing.B) Backend) {
	for i, s := range pairShapes(1000, 200) {
		b.Run(s.String(), func(b *testing.B) { besideTenant(b, open(b), s, uint64(i)) })
	}
}

func besideTenant(b *testing.B, backend Backend, s shape, seed uint64) {
	defer func() { check(b, backend.Close()) }()
	rng := rand.New(rand.NewPCG(seed, 26))
	ctx := klog.NewContext(b.Context(), logr.Discard())
	sync := func() { check(b, backend.Sync(ctx)) }
	backend.SetNode(Node())
	all := bystanders()
	for _, s := range all {
		Set(b, backend, s, bystanderEndpoint(s, 1), bystanderEndpoint(s, 2))
	}
	sync()
	plain, sticky := all[:2], all[2:]
	next := 3
	change := func(services []*model.Service) { // replaces an endpoint of each, or puts it back
		for _, s := range services {
			backend.DeleteEndpoint(bystanderEndpoint(s, 5-next).Key())
			backend.SetEndpoint(bystanderEndpoint(s, next))
		}
		sync()
	}
	took := func(f func()) time.Duration {
		w := Stopwatch{b: b}
		before := w.cpu()
		f()
		return w.cpu() - before
	}
	const rounds = 20
	changes := func(services []*model.Service) time.Duration {
		return took(func() {
			for range rounds {
				change(services)
				next = 5 - next
			}
		}) / rounds
	}
	alone, stickyAlone := changes(plain), changes(sticky)
	tenant := newTenant(rng, s, 0)
	coming := took(func() {
		for i := range s.slices {
			tenant.set(backend, i)
			sync()
		}
	})
	beside := changes(sticky)
	watch := NewStopwatch(b)
	for b.Loop() {
		watch.Time(func() { change(plain) })
		next = 5 - next
	}
	tenant.change(rng, backend)
	changing := took(sync)
	tenant.remove(backend)
	going := took(sync)
	for unit, d := range map[string]time.Duration{"coming-ms": coming, "change-ms": changing, "going-ms": going} {
		b.ReportMetric(float64(d.Milliseconds()), unit)
	}
	b.ReportMetric(float64(watch.Total)/float64(watch.N)/float64(alone), "times-alone")
	b.ReportMetric(float64(beside)/float64(stickyAlone), "sticky-times-alone")
}
