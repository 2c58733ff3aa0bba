package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	runtimemetrics "runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

const benchServices, benchEndpoints = 10000, 10

// benchService is one of the services that the flows of the benchmarks go to.
func benchService(b *testing.B, i int) *sink.ServiceEntry { return benchEntry(b, i, 1, benchEndpoints) }

func benchEntry(b *testing.B, i, ports, endpoints int) *sink.ServiceEntry {
	description := model.Service{
		Name:       model.ServiceName{Namespace: "default", Name: fmt.Sprintf("service-%d", i)},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
	}
	for p := range ports {
		port := model.ServicePort{Protocol: model.UDP, Port: uint16(53 + p)}
		if p > 0 {
			port.Name = fmt.Sprintf("port-%d", p)
		}
		description.Ports = append(description.Ports, port)
	}
	service, err := model.NewService(description)
	require.NoError(b, err)
	e := &sink.ServiceEntry{Service: service}
	for _, port := range service.Ports {
		for j := range endpoints {
			e.Endpoints = append(e.Endpoints, &model.Endpoint{
				Port: service.PortName(port),
				Target: netip.AddrPortFrom(netip.AddrFrom4(
					[4]byte{10 + byte(j>>8), byte(j + 1), byte(i >> 8), byte(i)}), port.Port),
				Sets: model.ClusterSet, Ready: true, Serving: true,
			})
		}
	}
	return e
}

// benchFlow is the i-th flow, to a serving endpoint or, if it is stale, to one that is gone.
func benchFlow(i int, stale bool) Flow {
	service := i % benchServices
	source := netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 14), 1}), uint16(1024+i&0x3fff))
	flow := Flow{
		Source:      source,
		Destination: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(service >> 8), byte(service)}), 53),
		ReplySource: netip.AddrPortFrom(netip.AddrFrom4(
			[4]byte{10, byte(i%benchEndpoints + 1), byte(service >> 8), byte(service)}), 53),
		ReplyDestination: source,
	}
	if stale {
		flow.ReplySource = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 99, byte(service >> 8), byte(service)}), 53)
	}
	return flow
}

// benchFlows is how many flows the benchmarks put into a table: 100,000, or half of what this kernel takes.
func benchFlows(b *testing.B, table *kernelTable) int {
	// Loads the module that has the limit.
	_, err := table.DeleteUDP(b.Context(), model.IPv4, nil, func(Flow) bool { return false })
	require.NoError(b, err)
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	require.NoError(b, err)
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(b, err)
	const flows = 100000
	if limit == 0 || limit/2 >= flows {
		return flows
	}
	b.Logf("WITH %d FLOWS INSTEAD OF %d: net.netfilter.nf_conntrack_max is %d", limit/2, flows, limit)
	return limit / 2
}

// A pass over 100,000 flows to 10,000 services with 10 endpoints each, in the kernel.
func BenchmarkPass(b *testing.B) {
	table := newKernelTable(b)
	r := Wrap(b.Context(), nil, Options{Table: table.Kernel, Families: []model.Family{model.IPv4}})
	for i := range benchServices {
		describe(r, nil, []*sink.ServiceEntry{benchService(b, i)})
	}
	require.NoError(b, r.Sync(b.Context()))
	r.Wait()
	index := r.families[0].index

	flows := benchFlows(b, table)
	for i := range flows {
		table.Add(benchFlow(i, false))
	}
	gone := benchFlow(flows, true) // the one stale flow, if there is one
	for _, m := range []struct {
		name  string
		only  []Selection
		stale int
	}{
		{"all flows", nil, 0}, {"all flows", nil, 1}, {"all flows", nil, flows / 10},
		{"an endpoint went", []Selection{{ReplySource: gone.ReplySource}}, 1},
		{"an address came or went", []Selection{{Destination: gone.Destination}}, 1},
		{"a node port came or went", []Selection{{Destination: netip.AddrPortFrom(netip.Addr{}, 30053)}}, 0},
	} {
		stale := m.stale
		b.Run(fmt.Sprintf("%s/flows=%d/stale=%d", m.name, flows, stale), func(b *testing.B) {
			b.ReportAllocs()
			peak := startPeak()
			var cpu time.Duration
			for b.Loop() {
				b.StopTimer()
				for i := range stale {
					table.Add(benchFlow(flows+i, true))
				}
				b.StartTimer()
				begin := cpuTime()
				deleted, err := pass(b.Context(), table, model.IPv4, m.only, index.stale)
				if err != nil || deleted != stale {
					b.Fatalf("deleted %d of %d: %v", deleted, stale, err)
				}
				cpu += cpuTime() - begin
			}
			b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(peak.stop())/(1<<20), "peak-heap-MiB")
		})
	}
	b.Run("vishvananda list only", func(b *testing.B) {
		b.ReportAllocs()
		peak := startPeak()
		begin := cpuTime()
		for b.Loop() {
			list, err := table.handle.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
			if err != nil || len(list) != flows {
				b.Fatalf("%d flows: %v", len(list), err)
			}
		}
		b.ReportMetric(float64((cpuTime()-begin).Milliseconds())/float64(b.N), "cpu-ms/op")
		b.ReportMetric(float64(peak.stop())/(1<<20), "peak-heap-MiB")
	})
}

// cpuTime is what this process has used of the processors, which is more telling than time where others use them, too.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The same with a table in which nothing is UDP: the kernel keeps it to itself.
func BenchmarkPassOverTCP(b *testing.B) {
	table := newKernelTable(b)
	for i := range benchFlows(b, table) {
		table.create(benchFlow(i, false), unix.IPPROTO_TCP)
	}
	for _, filter := range []bool{true, false} {
		b.Run(fmt.Sprintf("filter=%v", filter), func(b *testing.B) {
			table.cannotFilter.Store(!filter)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := table.DeleteUDP(b.Context(), model.IPv4, nil,
					func(Flow) bool { return true }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// One endpoint changes, of one of many services or of one large service: what Sync costs, without the pass.
func BenchmarkSync(b *testing.B) {
	for _, size := range []struct{ services, ports, endpoints int }{
		{100, 1, benchEndpoints}, {benchServices, 1, benchEndpoints}, {1, 1, 50_000}, {1, 8000, 10},
	} {
		b.Run(fmt.Sprintf("services=%d/ports=%d/endpoints=%d", size.services, size.ports, size.endpoints),
			func(b *testing.B) {
				r := Wrap(b.Context(), nil, Options{Table: nowhere{}, Families: []model.Family{model.IPv4}})
				entries := make([]*sink.ServiceEntry, size.services)
				for i := range entries {
					entries[i] = benchEntry(b, i, size.ports, size.endpoints)
					describe(r, nil, entries[i:i+1])
				}
				require.NoError(b, r.Sync(b.Context()))
				r.Wait()
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					list := entries[n*7919%size.services].Endpoints
					e := list[n%len(list)]
					r.DeleteEndpoint(e.Key())
					_ = r.Sync(b.Context())
					r.SetEndpoint(e)
					n++
				}
				r.Wait()
			})
	}
}

// nowhere is a table without flows.
type nowhere struct{}

func (nowhere) DeleteUDP(context.Context, model.Family, []Selection, func(Flow) bool) (int, error) {
	return 0, nil
}

// peak watches how large the heap becomes.
type peak struct {
	stopped, done chan struct{}
	max           atomic.Uint64
}

func startPeak() *peak {
	runtime.GC()
	p := &peak{stopped: make(chan struct{}), done: make(chan struct{})}
	read := func() uint64 {
		s := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		runtimemetrics.Read(s)
		return s[0].Value.Uint64()
	}
	before := read()
	go func() {
		defer close(p.done)
		for {
			if now := read(); now > before {
				p.max.Store(max(p.max.Load(), now-before))
			}
			select {
			case <-p.stopped:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return p
}

// stop returns by how many bytes the heap grew at most.
func (p *peak) stop() uint64 {
	close(p.stopped)
	<-p.done
	return p.max.Load()
}
