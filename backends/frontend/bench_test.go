package frontend

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// reader is a backend that reads all changes, and does nothing.
type reader struct{ slots, frontends int }

func (r *reader) apply(_ context.Context, c *Changes) error {
	for p := range c.Ports() {
		for range p.FrontendChanges() {
			r.frontends++
		}
		r.slots += len(p.EndpointChanges(model.ClusterSet))
	}
	return nil
}

// size is a number of services, each with so many endpoints, external IPs and ports.
type size struct{ services, endpoints, addresses, ports int }

func (z size) String() string {
	return fmt.Sprintf("%ds-%de-%da-%dp", z.services, z.endpoints, z.addresses, z.ports)
}

func (z size) service(i int) *model.Service {
	routes := model.NewRoutes(model.RoutePolicy{ClusterIP: true, ExternalAddresses: z.addresses > 0,
		DetectsLocalPods: true})
	s := &model.Service{Name: model.ServiceName{Namespace: "bench", Name: fmt.Sprintf("service-%05d", i)},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}}
	for a := range z.addresses {
		s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{100, byte(64 + a>>16), byte(a >> 8), byte(a)}))
	}
	for p := range z.ports {
		s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", p), Protocol: model.TCP, Port: uint16(80 + p),
			Routes: model.PerFamily[model.Routes]{IPv4: routes}})
	}
	return s
}

func (z size) endpoint(s *model.Service, i, port, j int) *model.Endpoint {
	n := i*z.endpoints + j
	return &model.Endpoint{Port: model.PortName{Service: s.Name, Port: fmt.Sprint("p", port), Protocol: model.TCP},
		Target: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(128 + n>>16), byte(n >> 8), byte(n)}), 8080),
		Sets:   model.ClusterSet, Ready: true, Serving: true}
}

// describe returns the calls that describe all of it, as values.
func (z size) describe() (objects []any) {
	for i := range z.services {
		s := z.service(i)
		objects = append(objects, s)
		for p := range z.ports {
			for j := range z.endpoints {
				objects = append(objects, z.endpoint(s, i, p, j))
			}
		}
	}
	return objects
}

func newReader(tb testing.TB, objects []any) (*Table, *reader) {
	r := &reader{}
	most := Budget{Frontends: math.MaxInt, SourceRanges: math.MaxInt, Destinations: math.MaxInt}
	t, err := New(Options{Families: []model.Family{model.IPv4}, Apply: r.apply, Limits: Limits{most, most}})
	require.NoError(tb, err)
	for _, o := range objects {
		switch o := o.(type) {
		case *model.Service:
			t.SetService(o)
		case *model.Endpoint:
			t.SetEndpoint(o)
		}
	}
	require.NoError(tb, t.Sync(quiet(tb)))
	return t, r
}

func BenchmarkFullLoad(b *testing.B) {
	for _, z := range []size{{1000, 10, 0, 1}, {10000, 10, 0, 1}, {1, 50000, 0, 1}, {1, 1, 16000, 1}, {1, 1, 0, 8000}} {
		b.Run(z.String(), func(b *testing.B) {
			objects := z.describe()
			b.ReportAllocs()
			for b.Loop() {
				newReader(b, objects)
			}
		})
	}
}

// BenchmarkOneEndpointChanged replaces one endpoint with another. It must not depend on the size.
func BenchmarkOneEndpointChanged(b *testing.B) {
	sizes := []size{{100, 10, 0, 1}, {10000, 10, 0, 1}, {1, 50000, 0, 1}, {1, 10, 16000, 1}, {1, 10, 0, 8000}}
	for _, z := range sizes {
		b.Run(z.String(), func(b *testing.B) {
			t, r := newReader(b, z.describe())
			s := z.service(0)
			here, there := z.endpoint(s, 0, 0, 3), z.endpoint(s, 1<<10, 0, 3)
			r.slots, r.frontends = 0, 0
			waves := 0
			b.ReportAllocs()
			for b.Loop() {
				t.DeleteEndpoint(here.Key())
				t.SetEndpoint(there)
				require.NoError(b, t.Sync(b.Context()))
				here, there = there, here
				waves++
			}
			require.Equal(b, waves, r.slots)
			require.Zero(b, r.frontends)
		})
	}
}

// BenchmarkOneEndpointOfALimitedNamespace is as BenchmarkOneEndpointChanged, in a namespace that asks for more than it
// may have: 15,712 of its ports are refused.
func BenchmarkOneEndpointOfALimitedNamespace(b *testing.B) {
	z := size{27, 0, 0, 20000}
	t, err := New(Options{Families: []model.Family{model.IPv4}, Apply: (&reader{}).apply})
	require.NoError(b, err)
	ctx := quiet(b)
	for _, o := range z.describe() {
		t.SetService(o.(*model.Service))
	}
	require.Len(b, sink.PortErrors(t.Sync(ctx)), 15_712)
	z.endpoints = 1
	here, there := z.endpoint(z.service(0), 0, 7, 0), z.endpoint(z.service(0), 1, 7, 0)
	b.ReportAllocs()
	for b.Loop() {
		t.DeleteEndpoint(here.Key())
		t.SetEndpoint(there)
		require.Error(b, t.Sync(ctx))
		here, there = there, here
	}
}

// BenchmarkServiceChanged changes a label, which is nothing to a backend, and an address.
func BenchmarkServiceChanged(b *testing.B) {
	for _, z := range []size{{100, 10, 1, 1}, {1, 50000, 1, 1}, {1, 10, 16000, 1}, {1, 10, 1, 8000}} {
		s := z.service(0)
		label, address := *s, *s
		label.Labels = map[string]string{"a": "b"}
		address.ExternalIPs = append([]netip.Addr{netip.MustParseAddr("100.63.0.1")}, s.ExternalIPs[1:]...)
		for name, other := range map[string]*model.Service{"label": &label, "address": &address} {
			b.Run(name+"/"+z.String(), func(b *testing.B) {
				t, _ := newReader(b, z.describe())
				here, there := s, other
				b.ReportAllocs()
				for b.Loop() {
					t.SetService(there)
					require.NoError(b, t.Sync(b.Context()))
					here, there = there, here
				}
			})
		}
	}
}

// BenchmarkHeap tells what a table keeps for each endpoint, beside the values that it is given.
func BenchmarkHeap(b *testing.B) {
	for _, z := range []size{{10000, 10, 0, 1}, {1000, 100, 0, 1}, {1, 50000, 0, 1}} {
		b.Run(z.String(), func(b *testing.B) {
			objects := z.describe()
			var before, after runtime.MemStats
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&before)
				t, _ := newReader(b, objects)
				runtime.GC()
				runtime.ReadMemStats(&after)
				runtime.KeepAlive(t)
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(z.services*z.endpoints), "B/endpoint")
		})
	}
}

// contestants returns services that all ask for the same frontends: addresses times ports of them.
func contestants(services, addresses, ports int) (list []any) {
	for i := range services {
		s := size{services, 0, addresses, ports}.service(i)
		s.UID = fmt.Sprint(i)
		list = append(list, s)
	}
	return list
}

// BenchmarkContestedKeys has 50,000 frontends that each of several services asks for. Loading must take time in
// proportion to services, deleting an owner must not depend on them.
func BenchmarkContestedKeys(b *testing.B) {
	const addresses, ports = 500, 100
	for _, services := range []int{1, 10, 40} {
		objects := contestants(services+1, addresses, ports)
		b.Run(fmt.Sprintf("load-%d", services), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				newReader(b, objects[:services])
			}
		})
		b.Run(fmt.Sprintf("delete-%d", services), func(b *testing.B) {
			t, _ := newReader(b, objects)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				owner := objects[i%len(objects)].(*model.Service)
				t.DeleteService(owner.Name)
				require.NoError(b, t.Sync(quiet(b)))
				b.StopTimer()
				t.SetService(owner)
				require.NoError(b, t.Sync(quiet(b)))
				b.StartTimer()
			}
		})
	}
}
