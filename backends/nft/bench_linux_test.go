package nft_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The benchmarks run against this machine's kernel, in a namespace of their own:
//
//	go test -run - -bench . -benchtime 3x ./backends/nft
//
// BenchmarkFloor is what the kernel itself takes for the elements that BenchmarkFullLoad brings in, from messages that
// are ready made; BenchmarkFloorOneEndpoint likewise for one element.

// clusterSize is a number of services, and of endpoints of each.
type clusterSize struct{ services, endpoints int }

func (c clusterSize) String() string { return fmt.Sprintf("%dx%d", c.services, c.endpoints) }

var clusterSizes = []clusterSize{{1000, 10}, {10000, 10}, {30000, 10}}

// size is a cluster of that size: service i has one port, and pods of its own, of which one is on this node.
func (c clusterSize) service(i int) *model.Service {
	name := model.ServiceName{Namespace: "bench", Name: fmt.Sprintf("service-%d", i)}
	vip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
	routes := model.NewRoutes(model.RoutePolicy{ClusterIP: true, DetectsLocalPods: true})
	return &model.Service{Name: name, ClusterIPs: []netip.Addr{vip},
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, RoutesIPv4: routes}}}
}

func (c clusterSize) endpoint(i, j int) *model.Endpoint {
	port := model.PortName{Service: c.service(i).Name, Port: "http", Protocol: model.TCP}
	n := i*16 + j
	local := j == 0 && i%100 == 0
	pod := netip.AddrFrom4([4]byte{10, byte(128 + n>>16), byte(n >> 8), byte(n)})
	if local {
		pod = netip.AddrFrom4([4]byte{10, 244, byte(i / 100), 9})
	}
	return &model.Endpoint{Port: port, Target: netip.AddrPortFrom(pod, 8080), Sets: model.ClusterSet, Ready: true, Serving: true, Local: local}
}

func benchNode() *model.Node {
	return &model.Node{Name: "bench", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		LocalPods: model.LocalPods{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}
}

func (c clusterSize) feed(b *nft.Backend) {
	b.SetNode(benchNode())
	for i := range c.services {
		b.SetService(c.service(i))
		for j := range c.endpoints {
			b.SetEndpoint(c.endpoint(i, j))
		}
	}
}

func newBackend(tb testing.TB, o nft.Options) *nft.Backend {
	tb.Helper()
	o.Families = []model.Family{model.IPv4}
	b, err := nft.New(tb.Context(), o)
	require.NoError(tb, err)
	return b
}

func eachSize(b *testing.B, f func(b *testing.B, c clusterSize)) {
	for _, c := range clusterSizes {
		b.Run(c.String(), func(b *testing.B) {
			testns.Enter(b)
			b.ReportAllocs()
			f(b, c)
		})
	}
}

func BenchmarkFullLoad(b *testing.B) {
	eachSize(b, func(b *testing.B, c clusterSize) {
		watch := newStopwatch(b)
		for b.Loop() {
			b.StopTimer()
			backend := newBackend(b, nft.Options{})
			c.feed(backend)
			runtime.GC()
			watch.alone(func() { require.NoError(b, backend.Sync(b.Context())) })
			require.NoError(b, backend.CleanUp(b.Context()))
			require.NoError(b, backend.Close())
			settle()
			b.StartTimer()
		}
	})
}

// stopwatch adds up processor time, which is less at the mercy of what else the machine does than the time that benchmarks
// report.
type stopwatch struct {
	b     *testing.B
	total time.Duration
	n     int
}

func newStopwatch(b *testing.B) *stopwatch {
	return &stopwatch{b: b}
}

func (s *stopwatch) cpu() time.Duration {
	var r unix.Rusage
	require.NoError(s.b, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// time does what is measured.
func (s *stopwatch) time(f func()) {
	before := s.cpu()
	f()
	s.total += s.cpu() - before
	s.n++
	s.b.ReportMetric(float64(s.total.Nanoseconds())/float64(s.n), "cpu-ns/op")
}

// alone does what is measured in a loop that else is not.
func (s *stopwatch) alone(f func()) {
	s.b.StartTimer()
	s.time(f)
	s.b.StopTimer()
}

// settle lets the kernel free what was deleted, which it does in the background, so that it does not count for what is
// measured next.
func settle() { time.Sleep(200 * time.Millisecond) }

func BenchmarkRestart(b *testing.B) {
	eachSize(b, func(b *testing.B, c clusterSize) {
		first := newBackend(b, nft.Options{})
		c.feed(first)
		require.NoError(b, first.Sync(b.Context()))
		require.NoError(b, first.Close())
		watch := newStopwatch(b)
		for b.Loop() {
			b.StopTimer()
			backend := newBackend(b, nft.Options{})
			c.feed(backend)
			runtime.GC()
			watch.alone(func() { require.NoError(b, backend.Sync(b.Context())) })
			require.NoError(b, backend.Close())
			b.StartTimer()
		}
	})
}

// benchChange measures waves of one change each, on a cluster that is in force.
func benchChange(b *testing.B, describe func(c clusterSize, backend *nft.Backend, n int)) {
	eachSize(b, func(b *testing.B, c clusterSize) {
		backend := newBackend(b, nft.Options{})
		defer func() { require.NoError(b, backend.Close()) }()
		c.feed(backend)
		require.NoError(b, backend.Sync(b.Context()))
		runtime.GC()
		watch, n := newStopwatch(b), 0
		for b.Loop() {
			watch.time(func() {
				describe(c, backend, n)
				if err := backend.Sync(b.Context()); err != nil {
					b.Fatal(err)
				}
			})
			n++
		}
	})
}

// One endpoint goes and another one comes, as when a pod is replaced.
func BenchmarkOneEndpointChanged(b *testing.B) {
	benchChange(b, func(c clusterSize, backend *nft.Backend, n int) {
		i := n / 2 * 7 % c.services
		gone, come := c.endpoint(i, 3), c.endpoint(i, 14)
		if n%2 == 1 {
			gone, come = come, gone
		}
		backend.DeleteEndpoint(gone.Key())
		backend.SetEndpoint(come)
	})
}

func BenchmarkResizeService(b *testing.B) {
	benchChange(b, func(c clusterSize, backend *nft.Backend, n int) {
		ep := c.endpoint(n/2*7%c.services, 3)
		if n%2 == 0 {
			backend.DeleteEndpoint(ep.Key())
		} else {
			backend.SetEndpoint(ep)
		}
	})
}

// A service comes, and in the next wave goes.
func BenchmarkAddOrDeleteService(b *testing.B) {
	benchChange(b, func(c clusterSize, backend *nft.Backend, n int) {
		s := c.service(c.services)
		if n%2 == 0 {
			backend.SetService(s)
		}
		for j := range c.endpoints {
			if ep := c.endpoint(c.services, j); n%2 == 0 {
				backend.SetEndpoint(ep)
			} else {
				backend.DeleteEndpoint(ep.Key())
			}
		}
		if n%2 == 1 {
			backend.DeleteService(s.Name)
		}
	})
}

// floorTable is a table with the maps that matter, empty.
func floorTable(b *testing.B, c clusterSize) (endpoints, services *dp.Set) {
	n, err := dp.NewNetlink()
	require.NoError(b, err)
	key := []dp.Field{dp.DestinationAddr, dp.Protocol, dp.DestinationPort}
	endpoints = &dp.Set{Name: "endpoints", Key: append(key[:3:3], dp.Random), Value: []dp.Field{dp.DestinationAddr, dp.DestinationPort}, Size: 1 << 18}
	if c.services > 10000 {
		endpoints.Size <<= 2
	}
	services = &dp.Set{Name: "service-ips", Key: key, Verdicts: true}
	tx := dp.NewTransaction(dp.TableKey{Family: model.IPv4, Name: "kpl-floor"})
	tx.AddTable("")
	tx.AddSet(endpoints)
	tx.AddSet(services)
	tx.AddChain(&dp.Chain{Name: "balance"})
	tx.AddRule("balance", &dp.Rule{Statements: []dp.Statement{dp.DNATMap{Key: endpoints.Key, N: 10, Map: "endpoints"}}})
	tx.AddChain(&dp.Chain{Name: "prerouting", Hook: dp.Prerouting, Priority: -100})
	tx.AddRule("prerouting", &dp.Rule{Statements: []dp.Statement{dp.GotoMap{Key: key, Map: "service-ips"}}})
	require.NoError(b, n.Apply(b.Context(), tx))
	require.NoError(b, n.Close())
	return endpoints, services
}

// rawBatch is a ready-made batch that adds, or deletes and adds, the elements of services from first on.
func rawBatch(c clusterSize, first, n, endpoints int, replace bool) []netlink.Message {
	message := func(typ, flags uint16, family byte, resource uint16, data []byte) netlink.Message {
		head := binary.BigEndian.AppendUint16([]byte{family, 0}, resource)
		return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.HeaderFlags(flags | unix.NLM_F_REQUEST)}, Data: append(head, data...)}
	}
	list := func(typ, flags uint16, set string, elements [][]byte) (ms []netlink.Message) {
		for len(elements) > 0 {
			var attrs []byte
			k := min(500, len(elements))
			for _, e := range elements[:k] {
				attrs = append(attrs, e...)
			}
			elements = elements[k:]
			data, _ := netlink.MarshalAttributes([]netlink.Attribute{{Type: 1, Data: []byte("kpl-floor\x00")}, {Type: 2, Data: []byte(set + "\x00")},
				{Type: 3 | netlink.Nested, Data: attrs}})
			ms = append(ms, message(unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags, unix.NFPROTO_IPV4, 0, data))
		}
		return ms
	}
	attr := func(typ uint16, data []byte) []byte {
		b, _ := netlink.MarshalAttributes([]netlink.Attribute{{Type: typ, Data: data}})
		return b
	}
	const nested = netlink.Nested
	var slots, verdicts, keys [][]byte
	for i := first; i < first+n; i++ {
		key := dp.AppendPort(dp.AppendProtocol(dp.AppendAddr(nil, c.service(i).ClusterIPs[0]), model.TCP), 80)
		for j := range endpoints {
			ep := c.endpoint(i, j).Target
			k := attr(1|nested, attr(1, dp.AppendRandom(key[:len(key):len(key)], uint32(j))))
			v := attr(2|nested, attr(1, dp.AppendPort(dp.AppendAddr(nil, ep.Addr()), ep.Port())))
			slots = append(slots, attr(1|nested, append(k[:len(k):len(k)], v...)))
			keys = append(keys, attr(1|nested, k))
		}
		k := attr(1|nested, attr(1, key))
		v := attr(2|nested, attr(2|nested, append(attr(1, binary.BigEndian.AppendUint32(nil, uint32(unix.NFT_GOTO&0xffffffff))), attr(2, []byte("balance\x00"))...)))
		verdicts = append(verdicts, attr(1|nested, append(k, v...)))
	}
	batch := []netlink.Message{message(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil)}
	if replace {
		batch = append(batch, list(unix.NFT_MSG_DELSETELEM, 0, "endpoints", keys)...)
	}
	batch = append(batch, list(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, "endpoints", slots)...)
	if !replace {
		batch = append(batch, list(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, "service-ips", verdicts)...)
	}
	batch[len(batch)-1].Header.Flags |= unix.NLM_F_ACK
	return append(batch, message(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil))
}

func rawConn(b *testing.B) *netlink.Conn {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close()) })
	raw, err := conn.SyscallConn()
	require.NoError(b, err)
	require.NoError(b, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 64<<20)
	}))
	require.NoError(b, err)
	return conn
}

func BenchmarkFloor(b *testing.B) {
	eachSize(b, func(b *testing.B, c clusterSize) {
		conn := rawConn(b)
		batch := rawBatch(c, 0, c.services, c.endpoints, false)
		watch := newStopwatch(b)
		for b.Loop() {
			b.StopTimer()
			floorTable(b, c)
			runtime.GC()
			watch.alone(func() {
				_, err := conn.SendMessages(batch)
				require.NoError(b, err)
				_, err = conn.Receive()
				require.NoError(b, err)
			})
			require.NoError(b, nft.CleanUp(b.Context(), nft.Options{TableName: "kpl-floor", Families: []model.Family{model.IPv4}}))
			settle()
			b.StartTimer()
		}
	})
}

func BenchmarkFloorOneEndpoint(b *testing.B) {
	eachSize(b, func(b *testing.B, c clusterSize) {
		conn := rawConn(b)
		floorTable(b, c)
		_, err := conn.SendMessages(rawBatch(c, 0, c.services, c.endpoints, false))
		require.NoError(b, err)
		_, err = conn.Receive()
		require.NoError(b, err)
		batch := rawBatch(c, 7, 1, 1, true)
		for b.Loop() {
			_, err := conn.SendMessages(batch)
			require.NoError(b, err)
			_, err = conn.Receive()
			require.NoError(b, err)
		}
	})
}

// BenchmarkMemory reports what the process holds and held at most, above what it had before there was a cluster.
func BenchmarkMemory(b *testing.B) {
	eachSize(b, func(b *testing.B, c clusterSize) {
		for b.Loop() {
			debug.FreeOSMemory()
			before := memory(b, "VmRSS")
			require.NoError(b, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)) // sets the peak back
			backend := newBackend(b, nft.Options{})
			c.feed(backend)
			described := memory(b, "VmRSS")
			require.NoError(b, backend.Sync(b.Context()))
			b.ReportMetric((memory(b, "VmHWM")-before)/1024, "MiB-peak")
			b.ReportMetric((described-before)/1024, "MiB-described")
			require.NoError(b, backend.CleanUp(b.Context()))
			require.NoError(b, backend.Close())
		}
	})
}

// memory returns a figure of the process in KiB.
func memory(b *testing.B, what string) float64 {
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(b, err)
	_, rest, _ := strings.Cut(string(status), what+":")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	require.NoError(b, err)
	return kib
}

// A new connection through the last of so many services, from a process of the node; and one that goes to an endpoint
// directly.
func BenchmarkNewFlow(b *testing.B) {
	for _, c := range []clusterSize{{10, 10}, {1000, 10}, {10000, 10}, {30000, 10}} {
		b.Run(c.String(), func(b *testing.B) {
			l := newLossTest(b)
			backend := newBackend(b, nft.Options{})
			defer func() { require.NoError(b, backend.Close()) }()
			c.feed(backend)
			backend.SetService(l.service()[1].(*model.Service))
			for i := range 10 {
				backend.SetEndpoint(l.endpoint(1 + i))
			}
			require.NoError(b, backend.Sync(b.Context()))
			i := 0
			for b.Loop() {
				if !l.flow(i, lossVIP) {
					b.Fatal("no answer")
				}
				i++
			}
		})
	}
	b.Run("direct", func(b *testing.B) {
		l := newLossTest(b)
		backend := newBackend(b, nft.Options{}) // or nothing would track connections
		defer func() { require.NoError(b, backend.Close()) }()
		clusterSize{10, 10}.feed(backend)
		require.NoError(b, backend.Sync(b.Context()))
		i := 0
		for b.Loop() {
			if !l.flow(i, unix.SockaddrInet4{Port: lossPort, Addr: [4]byte{10, 1, 0, byte(1 + i%12)}}) {
				b.Fatal("no answer")
			}
			i++
		}
	})
}

// BenchmarkAffinity is BenchmarkFullLoad, and then one changed endpoint, where all services have session affinity.
func BenchmarkAffinity(b *testing.B) {
	for _, c := range []clusterSize{{100, 10}, {1000, 10}} {
		b.Run(c.String(), func(b *testing.B) {
			testns.Enter(b)
			load, change := newStopwatch(b), newStopwatch(b)
			for b.Loop() {
				backend := newBackend(b, nft.Options{})
				c.feed(backend)
				for i := range c.services {
					s := *c.service(i)
					s.SessionAffinityTimeout = 3 * time.Hour
					backend.SetService(&s)
				}
				load.time(func() { require.NoError(b, backend.Sync(b.Context())) })
				backend.DeleteEndpoint(c.endpoint(3, 3).Key())
				backend.SetEndpoint(c.endpoint(3, 14))
				change.time(func() { require.NoError(b, backend.Sync(b.Context())) })
				require.NoError(b, backend.CleanUp(b.Context()))
				require.NoError(b, backend.Close())
			}
			b.ReportMetric(float64(load.total.Milliseconds())/float64(load.n), "load-cpu-ms/op")
			b.ReportMetric(float64(change.total.Microseconds())/float64(change.n), "change-cpu-us/op")
		})
	}
}
