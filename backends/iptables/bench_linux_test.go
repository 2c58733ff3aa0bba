package iptables_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The benchmarks run the programs of both variants against this machine's kernel, in a namespace of their own:
//
//	go test -run - -bench . -benchtime 5x ./backends/iptables

var clusterSizes = backendtest.Sizes(10, 1000, 5000, 10000)

func newBackend(tb testing.TB, o iptables.Options) *iptables.Backend {
	tb.Helper()
	o.Families = []model.Family{model.IPv4}
	o = o.CheckingEvery(-1)
	b, err := iptables.New(tb.Context(), o)
	require.NoError(tb, err)
	return b
}

func eachSize(b *testing.B, f func(backendtest.Bench, *testing.B)) {
	for _, v := range []dataplane.Variant{dataplane.NFT, dataplane.Legacy} {
		for _, c := range clusterSizes {
			b.Run(string(v)+"/"+c.String(), func(b *testing.B) {
				needPrograms(b, v)
				testkit.EnterNamespace(b)
				b.ReportAllocs()
				f(backendtest.Bench{Size: c,
					New: func() backendtest.Backend { return newBackend(b, iptables.Options{}.Of(v)) }}, b)
			})
		}
	}
}

func BenchmarkFullLoad(b *testing.B) { eachSize(b, backendtest.Bench.FullLoad) }

func BenchmarkRestart(b *testing.B) { eachSize(b, backendtest.Bench.Restart) }

func BenchmarkOneEndpointChanged(b *testing.B) { eachSize(b, backendtest.Bench.OneEndpointChanged) }

func BenchmarkAddOrDeleteService(b *testing.B) { eachSize(b, backendtest.Bench.AddOrDeleteService) }

// ofUDP makes UDP services of those of a cluster.
func ofUDP(s *model.Service) *model.Service {
	udp := *s
	udp.Ports = slices.Clone(s.Ports)
	udp.Ports[0].Protocol = model.UDP
	return &udp
}

// BenchmarkNewFlow is a new UDP flow from a process of the node: its first packet, up to the socket of an endpoint.
// First and last are the services that stand first and last of so many. The median is not at the mercy of what else the
// machine does.
func BenchmarkNewFlow(b *testing.B) {
	for _, v := range []dataplane.Variant{dataplane.NFT, dataplane.Legacy} {
		for _, c := range backendtest.Sizes(10, 100, 1000, 5000, 10000) {
			for _, at := range []struct {
				name string
				i    int
			}{{"first", 0}, {"last", c.Services - 1}} {
				b.Run(fmt.Sprintf("%s/%v/%s", v, c, at.name), func(b *testing.B) {
					needPrograms(b, v)
					flows := backendtest.NewFlows(b, testkit.EnterNamespace(b))
					backend := newBackend(b, iptables.Options{}.Of(v))
					defer func() { require.NoError(b, backend.Close()) }()
					backend.SetNode(c.Node())
					for i := range c.Services {
						backend.SetService(ofUDP(c.Service(i)))
						for j := range c.Endpoints {
							ep := c.Endpoint(i, j)
							if i == at.i {
								ep.Target = flows.Endpoint(1 + j).Target
							}
							ep.Port.Protocol = model.UDP
							backend.SetEndpoint(ep)
						}
					}
					require.NoError(b, backend.Sync(b.Context()))
					to := &unix.SockaddrInet4{Port: 80, Addr: c.Service(at.i).ClusterIPs[0].As4()}
					var times []time.Duration
					for b.Loop() {
						flows.Open(len(times), func(fd int) {
							began := time.Now()
							err := unix.Sendto(fd, []byte("hello"), 0, to)
							times = append(times, time.Since(began))
							require.NoError(b, err)
						})
					}
					slices.Sort(times)
					b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
				})
			}
		}
	}
}
