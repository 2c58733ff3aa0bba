package nft_test

import (
	"encoding/binary"
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

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The benchmarks run against this machine's kernel, in a namespace of their own:
//
//	go test -run - -bench . -benchtime 3x ./backends/nft
//
// BenchmarkFloor is what the kernel itself takes for the elements that BenchmarkFullLoad brings in, from messages that
// are ready made; BenchmarkFloorOneEndpoint likewise for one element.

var clusterSizes = backendtest.Sizes(10, 1000, 10000, 30000)

func newBackend(tb testing.TB, o nft.Options) *nft.Backend {
	tb.Helper()
	o.Families = []model.Family{model.IPv4}
	b, err := nft.New(tb.Context(), o)
	require.NoError(tb, err)
	return b
}

func eachSize(b *testing.B, f func(backendtest.Bench, *testing.B)) { each(b, clusterSizes, f) }

func each(b *testing.B, sizes []backendtest.ClusterSize, f func(backendtest.Bench, *testing.B)) {
	for _, c := range sizes {
		b.Run(c.String(), func(b *testing.B) {
			testkit.EnterNamespace(b)
			b.ReportAllocs()
			f(backendtest.Bench{Size: c, Settle: settle,
				New: func() backendtest.Backend { return newBackend(b, nft.Options{}) }}, b)
		})
	}
}

// settle lets the kernel free what was deleted, which it does in the background, so that it does not count for what is
// measured next.
func settle() { time.Sleep(200 * time.Millisecond) }

func BenchmarkFullLoad(b *testing.B) { eachSize(b, backendtest.Bench.FullLoad) }

func BenchmarkRestart(b *testing.B) { eachSize(b, backendtest.Bench.Restart) }

func BenchmarkOneEndpointChanged(b *testing.B) { eachSize(b, backendtest.Bench.OneEndpointChanged) }

func BenchmarkAddOrDeleteService(b *testing.B) { eachSize(b, backendtest.Bench.AddOrDeleteService) }

func BenchmarkResizeService(b *testing.B) {
	eachSize(b, func(m backendtest.Bench, b *testing.B) {
		m.Waves(b, func(d backendtest.Setter, n int) {
			ep := m.Size.Endpoint(n/2*7%m.Size.Services, 3)
			if n%2 == 0 {
				d.DeleteEndpoint(ep.Key())
			} else {
				d.SetEndpoint(ep)
			}
		})
	})
}

// floorTable is a table with the maps that matter, empty.
func floorTable(b *testing.B, c backendtest.ClusterSize) (endpoints, services *dp.Set) {
	n, err := dp.NewNetlink()
	require.NoError(b, err)
	key := []dp.Field{dp.DestinationAddr, dp.Protocol, dp.DestinationPort}
	endpoints = &dp.Set{Name: "endpoints", Key: append(key[:3:3], dp.Random), Size: 1 << 18,
		Value: []dp.Field{dp.DestinationAddr, dp.DestinationPort}}
	if c.Services > 10000 {
		endpoints.Size <<= 2
	}
	services = &dp.Set{Name: "service-ips", Key: key, Verdicts: true}
	tx := dp.NewTransaction(dp.TableKey{Family: model.IPv4, Name: "kpl-floor"})
	tx.AddTable("")
	tx.AddSet(endpoints)
	tx.AddSet(services)
	tx.AddChain(&dp.Chain{Name: "balance"})
	tx.AddRule("balance", &dp.Rule{Statements: []dp.Statement{dp.DNATMap{Map: endpoints, N: 10}}})
	tx.AddChain(&dp.Chain{Name: "prerouting", Hook: dp.Prerouting, Priority: -100})
	tx.AddRule("prerouting", &dp.Rule{Statements: []dp.Statement{dp.GotoMap{Map: services}}})
	require.NoError(b, n.Apply(b.Context(), tx))
	require.NoError(b, n.Close())
	return endpoints, services
}

// rawBatch is a ready-made batch that adds, or deletes and adds, the elements of services from first on.
func rawBatch(c backendtest.ClusterSize, first, n, endpoints int, replace bool) []netlink.Message {
	message := func(typ, flags uint16, family byte, resource uint16, data []byte) netlink.Message {
		head := binary.BigEndian.AppendUint16([]byte{family, 0}, resource)
		return netlink.Message{Data: append(head, data...), Header: netlink.Header{
			Type: netlink.HeaderType(typ), Flags: netlink.HeaderFlags(flags | unix.NLM_F_REQUEST)}}
	}
	list := func(typ, flags uint16, set string, elements [][]byte) (ms []netlink.Message) {
		for len(elements) > 0 {
			var attrs []byte
			k := min(500, len(elements))
			for _, e := range elements[:k] {
				attrs = append(attrs, e...)
			}
			elements = elements[k:]
			data, _ := netlink.MarshalAttributes([]netlink.Attribute{
				{Type: 1, Data: []byte("kpl-floor\x00")}, {Type: 2, Data: []byte(set + "\x00")},
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
		key := dp.AppendPort(dp.AppendProtocol(dp.AppendAddr(nil, c.Service(i).ClusterIPs[0]), model.TCP), 80)
		for j := range endpoints {
			ep := c.Endpoint(i, j).Target
			k := attr(1|nested, attr(1, dp.AppendNumber(key[:len(key):len(key)], uint32(j))))
			v := attr(2|nested, attr(1, dp.AppendPort(dp.AppendAddr(nil, ep.Addr()), ep.Port())))
			slots = append(slots, attr(1|nested, append(k[:len(k):len(k)], v...)))
			keys = append(keys, attr(1|nested, k))
		}
		k := attr(1|nested, attr(1, key))
		code := binary.BigEndian.AppendUint32(nil, uint32(unix.NFT_GOTO&0xffffffff))
		v := attr(2|nested, attr(2|nested, append(attr(1, code), attr(2, []byte("balance\x00"))...)))
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
	eachSize(b, func(m backendtest.Bench, b *testing.B) {
		c := m.Size
		conn := rawConn(b)
		batch := rawBatch(c, 0, c.Services, c.Endpoints, false)
		watch := backendtest.NewStopwatch(b)
		for b.Loop() {
			b.StopTimer()
			floorTable(b, c)
			runtime.GC()
			watch.Alone(func() {
				_, err := conn.SendMessages(batch)
				require.NoError(b, err)
				_, err = conn.Receive()
				require.NoError(b, err)
			})
			require.NoError(b, nft.CleanUp(b.Context(),
				nft.Options{TableName: "kpl-floor", Common: frontend.Common{Families: []model.Family{model.IPv4}}}))
			settle()
			b.StartTimer()
		}
	})
}

func BenchmarkFloorOneEndpoint(b *testing.B) {
	eachSize(b, func(m backendtest.Bench, b *testing.B) {
		c := m.Size
		conn := rawConn(b)
		floorTable(b, c)
		_, err := conn.SendMessages(rawBatch(c, 0, c.Services, c.Endpoints, false))
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
	eachSize(b, func(m backendtest.Bench, b *testing.B) {
		c := m.Size
		for b.Loop() {
			debug.FreeOSMemory()
			before := memory(b, "VmRSS")
			cleared := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // sets the peak back
			if cleared != nil {
				b.Logf("NO FIGURE OF THE PEAK: this kernel cannot set it back: %v", cleared)
			}
			backend := newBackend(b, nft.Options{})
			c.Set(backend)
			described := memory(b, "VmRSS")
			require.NoError(b, backend.Sync(b.Context()))
			if cleared == nil {
				b.ReportMetric((memory(b, "VmHWM")-before)/1024, "MiB-peak")
			}
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
	for _, c := range backendtest.Sizes(10, 10, 1000, 10000, 30000) {
		b.Run(c.String(), func(b *testing.B) {
			flows := backendtest.NewFlows(b, testkit.EnterNamespace(b))
			backend := newBackend(b, nft.Options{})
			defer func() { require.NoError(b, backend.Close()) }()
			c.Set(backend)
			backend.SetService(flows.Service())
			for i := range 10 {
				backend.SetEndpoint(flows.Endpoint(1 + i))
			}
			require.NoError(b, backend.Sync(b.Context()))
			i := 0
			for b.Loop() {
				if !flows.Flow(i, flows.VIP()) {
					b.Fatal("no answer")
				}
				i++
			}
		})
	}
	b.Run("direct", func(b *testing.B) {
		flows := backendtest.NewFlows(b, testkit.EnterNamespace(b))
		backend := newBackend(b, nft.Options{}) // or nothing would track connections
		defer func() { require.NoError(b, backend.Close()) }()
		backendtest.ClusterSize{Services: 10, Endpoints: 10}.Set(backend)
		require.NoError(b, backend.Sync(b.Context()))
		i := 0
		for b.Loop() {
			if !flows.Flow(i, flows.EndpointAddr(1+i%12)) {
				b.Fatal("no answer")
			}
			i++
		}
	})
}

// BenchmarkAffinity is BenchmarkFullLoad, and then one changed endpoint, where all services have session affinity.
func BenchmarkAffinity(b *testing.B) {
	b.Run("load", func(b *testing.B) { eachSizeWithAffinity(b, backendtest.Bench.FullLoad, 100, 1000, 4000) })
	b.Run("change", func(b *testing.B) { eachSizeWithAffinity(b, backendtest.Bench.OneEndpointChanged, 100, 1000) })
}

func eachSizeWithAffinity(b *testing.B, f func(backendtest.Bench, *testing.B), services ...int) {
	sizes := backendtest.Sizes(10, services...)
	for i := range sizes {
		sizes[i].Affinity = 3 * time.Hour
	}
	each(b, sizes, f)
}
