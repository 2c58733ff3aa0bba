package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// Scale is a benchmark. It measures what one replaced endpoint, a full state and a restart cost at 100, 1,000 and 5,000
// services, and says whether the cost of one endpoint follows the change or the size of the cluster. Call it from a
// benchmark:
//
//	func BenchmarkScale(b *testing.B) { conformance.Scale(b, factory()) }
//
// The time of an operation is that of a wave with one endpoint. It also reports the full state and the restart, once
// each, and the processor time of a wave, including that of the programs that it starts. The verdict compares processor
// times, which depend less on what else the machine does. They are of waves before the timed ones, so that the verdict
// does not depend on -benchtime. See [Factory] for what is called. No packet is sent, and nothing fails for being slow.
func Scale(b *testing.B, f Factory) {
	b.Helper()
	if _, err := network.Families(); err != nil {
		b.Skipf("needs the right to make network namespaces, as root or under unshare -rn (%v)", err)
	}
	var costs []scaleCost
	sizes := []int{100, 1000, 5000}
	for i, services := range sizes {
		var run *scaleRun
		b.Run(fmt.Sprintf("%d-services", services), func(b *testing.B) {
			ctx := context.Background() // the backend lives longer than one call of this function
			first := run == nil         // of the calls with growing b.N
			if first {
				var err error
				if run, err = startScale(ctx, f, services); err != nil {
					b.Fatal(err)
				}
				costs = append(costs, run.cost)
			}
			b.ResetTimer()
			if err := run.waves(ctx, b.N); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			b.ReportMetric(run.cost.wave.Seconds()*1e3, "cpu-ms/op")
			b.ReportMetric(run.cost.full.Seconds()*1e3, "full-ms")
			b.ReportMetric(run.cost.restart.Seconds()*1e3, "restart-ms")
			if i == len(sizes)-1 && first && len(costs) > 1 {
				b.Log(scaleVerdict(costs))
			}
		})
		if run == nil {
			continue // it failed, or was not selected
		}
		if err := run.stop(); err != nil {
			b.Fatal(err)
		}
	}
}

// scaleCost is what a backend costs at one size.
type scaleCost struct {
	services      int
	full, restart time.Duration
	wave          time.Duration // the least processor time of one with one endpoint
}

// The verdict is from as many waves as fit into measureFor, within these bounds.
const (
	leastWaves, mostWaves = 5, 200
	measureFor            = time.Second
)

// scaleVerdict compares one endpoint at the smallest and at the largest size.
func scaleVerdict(costs []scaleCost) string {
	first, last := costs[0], costs[len(costs)-1]
	growth := float64(last.wave) / float64(max(first.wave, time.Microsecond))
	size := float64(last.services) / float64(first.services)
	verdict := "follows change"
	switch {
	case growth > size/5:
		verdict = "follows the size of the cluster"
	case growth > size/20:
		verdict = "grows with the cluster, though less than that"
	}
	return fmt.Sprintf("one endpoint takes %.2g times the processor time at %d services that it takes at %d: the cost %s",
		growth, last.services, first.services, verdict)
}

// scaleRun is a backend on its own node, with many services.
type scaleRun struct {
	*session
	cost scaleCost
	// The two endpoints that replace each other in turn.
	now, next *model.Endpoint
}

// startScale starts a backend, which applies a full state, and the same again after a restart.
func startScale(ctx context.Context, f Factory, services int) (*scaleRun, error) {
	s, err := newScaleSession(f)
	if err != nil {
		return nil, err
	}
	r := &scaleRun{session: s, cost: scaleCost{services: services}}
	if err := r.begin(ctx); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

func (r *scaleRun) begin(ctx context.Context) error {
	if err := r.start(ctx, setup{}); err != nil {
		return err
	}
	objects := r.objects()
	for _, took := range []*time.Duration{&r.cost.full, &r.cost.restart} {
		if took == &r.cost.restart {
			if err := r.restart(ctx); err != nil {
				return err
			}
		}
		if err := r.describeObjects(objects); err != nil {
			return err
		}
		began := time.Now()
		if err := r.sync(ctx); err != nil {
			return fmt.Errorf("sync with %d services: %w", r.cost.services, err)
		}
		*took = time.Since(began)
	}
	r.choose()
	return r.measure(ctx)
}

// measure applies waves with one endpoint each, and notes the least processor time.
func (r *scaleRun) measure(ctx context.Context) error {
	runtime.GC() // so that the garbage of building the state is not collected during a measurement
	began := time.Now()
	for i := 0; i < leastWaves || i < mostWaves && time.Since(began) < measureFor; i++ {
		before := processorTime()
		if err := r.waves(ctx, 1); err != nil {
			return err
		}
		if took := processorTime() - before; r.cost.wave == 0 || took < r.cost.wave {
			r.cost.wave = took
		}
	}
	return nil
}

// waves replaces one endpoint of one service in each wave.
func (r *scaleRun) waves(ctx context.Context, n int) error {
	for range n {
		err := r.host.Do(func() error {
			r.sink.DeleteEndpoint(r.now.Key())
			r.sink.SetEndpoint(r.next)
			return r.sink.Sync(ctx)
		})
		if err != nil {
			return fmt.Errorf("sync with one endpoint that was replaced: %w", err)
		}
		r.now, r.next = r.next, r.now
	}
	return nil
}

func (r *scaleRun) stop() error {
	err := r.cleanup(context.Background())
	r.close()
	return err
}

// scaleEndpoints is how many endpoints each service has in each family.
const scaleEndpoints = 5

// objects returns services with a cluster IP and one port, whose endpoints are all on another node.
func (r *scaleRun) objects() []metav1.Object {
	var objects []metav1.Object
	for i := range r.cost.services {
		name := fmt.Sprintf("svc-%d", i)
		var ips []string
		for _, f := range r.env.Families {
			ips = append(ips, network.Nth(clusterIPs(f), 10+i).String())
			slice := kube.EndpointSlice(name).Port("http", serverPort)
			for j := range scaleEndpoints {
				slice.Endpoint(scalePod(f, i*scaleEndpoints+j).String()).OnNode(otherNode)
			}
			objects = append(objects, slice.Build())
		}
		objects = append(objects, kube.Service(name).ClusterIP(ips...).Port("http", 80).Build())
	}
	return objects
}

// scalePod is the n-th pod of the cluster.
func scalePod(f model.Family, n int) netip.Addr {
	return network.Nth(network.PlanOf(f).AllPods, 1024+n)
}

// choose chooses the endpoint that is replaced: the first one of a service in the middle.
func (r *scaleRun) choose() {
	middle, f := r.cost.services/2, r.env.Families[0]
	name := model.ServiceName{Namespace: "default", Name: fmt.Sprintf("svc-%d", middle)}
	key := model.EndpointKey{Port: model.PortName{Service: name, Port: "http", Protocol: model.TCP},
		Target: netip.AddrPortFrom(scalePod(f, middle*scaleEndpoints), serverPort)}
	next := *r.told.endpoints[key]
	next.Target = netip.AddrPortFrom(scalePod(f, r.cost.services*scaleEndpoints), serverPort)
	r.now, r.next = r.told.endpoints[key], &next
}

// newScaleSession makes a node that has only its addresses.
func newScaleSession(f Factory) (*session, error) {
	machine, err := network.Families()
	if err != nil {
		return nil, err
	}
	if len(machine) == 1 && !f.lacks(IPv6) {
		f.Lacks = append(slices.Clone(f.Lacks), IPv6)
	}
	n, err := network.NewNode(f.families())
	if err != nil {
		return nil, err
	}
	return newSessionOn(n, f, defaultPatience(), 0)
}

// processorTime is that of this process and of the programs that it has started and waited for.
func processorTime() time.Duration {
	var total time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) == nil {
			total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return total
}
