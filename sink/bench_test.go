package sink_test

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// cluster has the model values of services with some endpoints each.
type cluster struct {
	services  []*model.Service
	endpoints []*model.Endpoint
}

func newCluster(services, endpoints int) cluster {
	var c cluster
	for i := range services {
		s := service(fmt.Sprintf("service-%d", i), byte(i))
		c.services = append(c.services, s)
		for j := range endpoints {
			target := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)}), 8080)
			c.endpoints = append(c.endpoints, endpoint(model.EndpointKey{Port: s.PortName(s.Ports[0]), Target: target},
				model.ClusterSet))
		}
	}
	return c
}

func (c cluster) describe(s sink.Sink) {
	perService := len(c.endpoints) / len(c.services)
	for i, svc := range c.services {
		s.SetService(svc)
		for _, e := range c.endpoints[i*perService : (i+1)*perService] {
			s.SetEndpoint(e)
		}
	}
}

// One endpoint changes, then Sync with a callback that reads what changed.
func BenchmarkSnapshot(b *testing.B) {
	for _, services := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("%dx10", services), func(b *testing.B) {
			c := newCluster(services, 10)
			var applied *sink.Snapshot
			changed := 0
			f := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
				for c := range s.ChangesSince(applied) {
					for range c.Endpoints() {
						changed++
					}
				}
				applied = s
				return nil
			})
			c.describe(f)
			if err := f.Sync(b.Context()); err != nil {
				b.Fatal(err)
			}
			// Each endpoint has two versions, so that every wave changes one.
			versions := [2][]*model.Endpoint{c.endpoints, nil}
			for _, e := range c.endpoints {
				v := *e
				v.Sets = model.ClusterSet | model.LocalSet
				versions[1] = append(versions[1], &v)
			}
			changed = 0
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				// The step has no factor in common with the number of endpoints, so it visits the whole tree.
				i := n * 7919
				f.SetEndpoint(versions[(n/len(c.endpoints)+1)%2][i%len(c.endpoints)])
				if err := f.Sync(b.Context()); err != nil {
					b.Fatal(err)
				}
				n++
			}
			if changed != n {
				b.Fatalf("%d changes in %d waves", changed, n)
			}
		})
	}
}

// One endpoint of a service that has many is replaced by another, on each of its ports, then Sync with a callback that
// reads what changed.
func BenchmarkHugeService(b *testing.B) {
	for name, size := range map[string]struct{ endpoints, ports int }{"50000": {50_000, 1},
		"10000x50ports": {10_000, 50}} {
		b.Run(name, func(b *testing.B) {
			var applied *sink.Snapshot
			changed := 0
			f := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
				for c := range s.ChangesSince(applied) {
					for range c.Endpoints() {
						changed++
					}
				}
				applied = s
				return nil
			})
			svc := service("huge", 1)
			svc.Ports = nil
			at := func(port, n int) model.EndpointKey {
				p := model.PortName{Service: svc.Name, Port: fmt.Sprintf("port-%d", port), Protocol: model.TCP}
				target := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
				return model.EndpointKey{Port: p, Target: netip.AddrPortFrom(target, uint16(8000+port))}
			}
			for p := range size.ports {
				svc.Ports = append(svc.Ports, model.ServicePort{Name: fmt.Sprintf("port-%d", p), Protocol: model.TCP,
					Port: uint16(1000 + p)})
				for n := range size.endpoints {
					f.SetEndpoint(endpoint(at(p, n), model.ClusterSet))
				}
			}
			f.SetService(svc)
			if err := f.Sync(b.Context()); err != nil {
				b.Fatal(err)
			}
			changed = 0
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				for p := range size.ports {
					f.DeleteEndpoint(at(p, n))
					f.SetEndpoint(endpoint(at(p, n+size.endpoints), model.ClusterSet))
				}
				if err := f.Sync(b.Context()); err != nil {
					b.Fatal(err)
				}
				n++
			}
			if changed != 2*n*size.ports {
				b.Fatalf("%d changes in %d waves", changed, n)
			}
		})
	}
}

// The first wave of a large cluster, and the live memory afterwards besides the model's values.
func BenchmarkFullLoad(b *testing.B) {
	c := newCluster(10000, 10)
	load := func() *sink.FullState {
		f := sink.NewFullState(func(context.Context, *sink.Snapshot) error { return nil })
		c.describe(f)
		if err := f.Sync(b.Context()); err != nil {
			b.Fatal(err)
		}
		return f
	}
	b.Run("10000x10", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			load()
		}
		before := testkit.LiveHeap()
		f := load()
		b.ReportMetric(float64(testkit.LiveHeap()-before)/float64(len(c.endpoints)), "live-B/endpoint")
		runtime.KeepAlive(f)
		runtime.KeepAlive(c)
	})
}
