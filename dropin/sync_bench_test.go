package dropin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/node/page"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// benchService returns the i-th of many TCP services, and benchEndpoint an endpoint of one.
func benchService(i int) *model.Service {
	return &model.Service{Name: model.ServiceName{Namespace: "bench", Name: fmt.Sprintf("service-%05d", i)},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80,
			Routes: model.PerFamily[model.Routes]{
				IPv4: model.NewRoutes(model.RoutePolicy{ClusterIP: true, DetectsLocalPods: true})}}}}
}

func benchEndpoint(i, j int) *model.Endpoint {
	return &model.Endpoint{Port: model.PortName{Service: benchService(i).Name, Port: "http", Protocol: model.TCP},
		Target: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(128 + j), byte(i >> 8), byte(i)}), 8080),
		Sets:   model.ClusterSet, Ready: true, Serving: true}
}

// BenchmarkSyncWithoutConcern is what each sink of the chain costs in a Sync that replaces an endpoint of a TCP
// service, which is of no concern to most of them, with 10,000 services of which the dataplane refuses some. "table" is
// what the others wrap, and in their figures: the table of frontends, as all backends have it, with nothing to write.
func BenchmarkSyncWithoutConcern(b *testing.B) {
	wraps := []struct {
		name string
		wrap func(b *testing.B, next sink.Sink) sink.Sink
	}{
		{"table", func(_ *testing.B, next sink.Sink) sink.Sink { return next }},
		{"page", func(_ *testing.B, next sink.Sink) sink.Sink { return page.New(page.Options{}).Sink(next) }},
		{"conntrack", func(b *testing.B, next sink.Sink) sink.Sink {
			return conntrack.Wrap(b.Context(), next, conntrack.Options{Table: noFlows{}})
		}},
		{"healthcheck", func(_ *testing.B, next sink.Sink) sink.Sink {
			return health.NewServices(next, health.ServicesOptions{})
		}},
		{"all", func(b *testing.B, next sink.Sink) sink.Sink {
			proxy, host := health.New(0), &nodeaddr.Fake{}
			tracker, err := nodeaddr.NewTracker(nodeaddr.Options{Host: host})
			require.NoError(b, err)
			flows := conntrack.Wrap(b.Context(), next, conntrack.Options{Table: noFlows{}, Addresses: tracker.Addresses})
			services := health.NewServices(flows, health.ServicesOptions{Addresses: tracker.Addresses})
			return &sinks{TeeSink: sink.Tee(addressSink{sink.NewForward(nil), tracker}, services, proxy.Sink()),
				others: &others{remove: func(context.Context) error { return nil },
					find: func(context.Context) []string { return nil }}}
		}},
	}
	for _, w := range wraps {
		for _, refused := range []int{0, 1000} {
			b.Run(fmt.Sprintf("%s/refused=%d", w.name, refused), func(b *testing.B) {
				ctx := klog.NewContext(b.Context(), logr.Discard())
				left := refused
				table, err := frontend.New(frontend.Options{Apply: func(_ context.Context, c *frontend.Changes) error {
					for p := range c.Ports() {
						if left > 0 {
							left--
							p.Refuse(nil, errors.New("no space left on device"))
						}
					}
					return nil
				}})
				require.NoError(b, err)
				s := w.wrap(b, table)
				const services, endpoints = 10_000, 10
				for i := range services {
					s.SetService(benchService(i))
					for j := range endpoints {
						s.SetEndpoint(benchEndpoint(i, j))
					}
				}
				require.Len(b, sink.PortErrors(s.Sync(ctx)), refused)
				versions := [2]*model.Endpoint{benchEndpoint(services/2, 3), benchEndpoint(services/2, endpoints)}
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					s.DeleteEndpoint(versions[n%2].Key())
					s.SetEndpoint(versions[(n+1)%2])
					_ = s.Sync(ctx)
					n++
				}
			})
		}
	}
}
