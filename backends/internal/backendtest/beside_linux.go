package backendtest

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// besideTenant is the processor time of a tenant's changes, and of bystanders' beside it.
type besideTenant struct {
	steps []testkit.Step // of the tenant: it comes, changes, has session affinity again if it had, and goes
	// The change of an endpoint of the bystanders without session affinity, before the tenant came and beside it, and
	// that of the one with it.
	alone, beside, stickyAlone, stickyBeside time.Duration
}

// newBesideTenant measures a tenant on the dataplane of a backend, which it closes.
func newBesideTenant(t testing.TB, backend Backend, s shape, seed uint64) (r besideTenant) {
	defer func() { check(t, backend.Close()) }()
	ctx := klog.NewContext(context.Background(), logr.Discard())
	sync := func() { check(t, backend.Sync(ctx)) }
	took := func(f func()) time.Duration {
		runtime.GC()
		before := processorTime(t)
		f()
		return processorTime(t) - before
	}
	backend.SetNode(Node())
	all := bystanders()
	for _, s := range all {
		Set(t, backend, s, bystanderEndpoint(s, 1), bystanderEndpoint(s, 2))
	}
	sync()
	changes := func(services []*model.Service) time.Duration {
		const rounds = 20 // an even number, after which everything is as before
		return took(func() {
			for i := range rounds {
				for _, s := range services { // replaces an endpoint, or puts it back
					backend.DeleteEndpoint(bystanderEndpoint(s, 2+i%2).Key())
					backend.SetEndpoint(bystanderEndpoint(s, 3-i%2))
				}
				sync()
			}
		}) / rounds
	}
	plain, sticky := all[:2], all[2:]
	r.alone, r.stickyAlone = changes(plain), changes(sticky)

	rng := rand.New(rand.NewPCG(seed, 26))
	tenant := newTenant(rng, s, 0)
	step := func(name string, f func()) {
		r.steps = append(r.steps, testkit.Step{Name: name, Work: testkit.Work{Time: took(f)}})
	}
	step("coming", func() {
		for i := range s.slices {
			tenant.set(backend, i)
			sync()
		}
	})
	r.beside, r.stickyBeside = changes(plain), changes(sticky)
	tenant.change(rng, backend)
	step("change", sync)
	if s.sticky {
		tenant.stick(backend)
		step("affinity", sync)
	}
	tenant.remove(backend)
	step("going", sync)
	return r
}

// isSlow reports whether a bystander without session affinity is much slower beside the tenant. What takes less than
// 100 us may be noise.
func (r besideTenant) isSlow() bool { return r.beside > 8*max(r.alone, 100*time.Microsecond) }

// BesideTenants measures the change of bystanders' endpoints next to a tenant, for each pair of dimensions of
// [Tenants.Pairs], on the dataplane of a backend that open makes. It reports the processor time of such a change, of
// bystanders without session affinity; by how much that exceeds the time without the tenant, measured before in the
// same run, and the same of a bystander with session affinity; and the milliseconds that it takes to add, change (among
// other things, session affinity is switched off) and remove the tenant. Nothing fails: compare pairs.
func BesideTenants(b *testing.B, open func(testing.TB) Backend) {
	for i, s := range pairShapes(1000, 1000) {
		b.Run(s.String(), func(b *testing.B) {
			for b.Loop() {
				r := newBesideTenant(b, open(b), s, uint64(i))
				b.ReportMetric(float64(r.beside.Nanoseconds()), "cpu-ns/op")
				b.ReportMetric(float64(r.beside)/float64(r.alone), "times-alone")
				b.ReportMetric(float64(r.stickyBeside)/float64(r.stickyAlone), "sticky-times-alone")
				for _, step := range r.steps {
					b.ReportMetric(float64(step.Time.Milliseconds()), step.Name+"-ms")
				}
			}
		})
	}
}

// NoTenantTakesMoreTime is about what the kernel itself multiplies, which cannot be counted: for each pair of
// dimensions of [Tenants.Pairs] it compares processor times. It fails if four times as much of a dimension takes the
// tenant much longer than linear work would; or if beside the smaller tenant the change of an endpoint without session
// affinity takes eight times as long as alone. As in [testkit.CompareTimes], it has to do so in each of five tries.
func NoTenantTakesMoreTime(t *testing.T, open func(testing.TB) Backend) {
	larger := pairShapes(4000, 4000)
	for i, s := range pairShapes(1000, 1000) {
		t.Run(s.String(), func(t *testing.T) {
			measure := func(s shape) besideTenant { return newBesideTenant(t, open(t), s, uint64(i)) }
			var runs []besideTenant
			small := func() []testkit.Step {
				runs = append(runs, measure(s))
				return runs[len(runs)-1].steps
			}
			testkit.CompareTimes(t, small, func() []testkit.Step { return measure(larger[i]).steps })
			for !slices.ContainsFunc(runs, func(r besideTenant) bool { return !r.isSlow() }) {
				if len(runs) >= 5 {
					t.Errorf("a bystander: %+v", runs)
					break
				}
				small()
			}
		})
	}
}
