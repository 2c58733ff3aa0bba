package brain

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fleetSize is how large a fleet the benchmarks have: a small one, so that running every benchmark once takes
// seconds; or with KPL_BENCH_FULL=1 that of the goals, which needs 20,000 file descriptors, 4 GB and minutes.
type fleetSize struct {
	fleetSpec
	clients int
	changes int // in each iteration
	full    bool
	floor   float64 // milliseconds that gRPC alone takes for a change; 0: not measured
}

func benchmarkSize() fleetSize {
	if os.Getenv("KPL_BENCH_FULL") != "" {
		return fleetSize{fleetSpec{Services: 10_000, Endpoints: 10, Nodes: 5000, Heartbeat: 12 * time.Second}, 5000, 20,
			true, 0}
	}
	return fleetSize{fleetSpec{Services: 100, Endpoints: 10, Nodes: 90, Heartbeat: 200 * time.Millisecond}, 90, 2,
		false, 0}
}

// goal reports a figure and, at full size, whether it is at most what it should be.
func (s fleetSize) goal(b *testing.B, value float64, unit string, most float64) {
	b.Helper()
	b.ReportMetric(value, unit)
	if !s.full {
		return
	}
	verdict := "holds"
	if value > most {
		verdict = "MISSED"
	}
	b.Logf("%s: %.4g %s, goal %.4g: %s", b.Name(), value, unit, most, verdict)
	if value > most && os.Getenv("KPL_GOALS") != "" {
		b.Fail()
	}
}

// BenchmarkFleet is a fleet of clients over mTLS on loopback, in three zones, and a server in a process of its own.
// CPU time and memory are the server's. What gRPC takes alone is measured first, as Floor, because the machine decides
// that: a change is to cost at most a tenth more. Run it with -benchtime 1x: its parts share the fleet, in the order in
// which they are.
func BenchmarkFleet(b *testing.B) {
	size := benchmarkSize()
	ca := newAuthority(b)
	b.Run("Floor", func(b *testing.B) { size.floor = fleetFloor(b, size, ca) })
	server := startFleetServer(b, size.fleetSpec, ca)
	f := newFleet(b, ca, size.clients)
	f.connect(b, f.clients[:len(fleetZones)], server.address,
		1) // the first of each zone, for which its state is worked out
	empty := server.do(b, doCollect, 0)
	f.connect(b, f.clients[len(fleetZones):], server.address, 32)
	connected := server.settled(b)
	clients := float64(size.clients - len(fleetZones))

	b.Run("FirstState", func(b *testing.B) {
		for b.Loop() { // it has been sent already
		}
		b.ReportMetric(float64((connected.CPU-empty.CPU).Microseconds())/clients, "server-us/client")
		var largest int64
		for _, c := range f.clients {
			largest = max(largest, c.read.Load()-c.readBefore)
		}
		size.goal(b, float64(largest), "bytes/client", 1<<20)
	})
	b.Run("Memory", func(b *testing.B) {
		var now fleetUsage
		for b.Loop() {
			now = server.do(b, doCollect, 0)
		}
		now.report(b, empty, size.clients-len(fleetZones))
		size.goal(b, float64(now.RSS-empty.RSS)/clients/1024, "KB/client", 64)
		size.goal(b, float64(now.RSS)/(1<<20), "MB", 600)
	})
	b.Run("Reconnect", func(b *testing.B) {
		other := startFleetServer(b, size.fleetSpec, ca)
		b.Run("Same", func(b *testing.B) { f.reconnect(b, size, server) })
		b.Run("Other", func(b *testing.B) { f.reconnect(b, size, other) })
		b.Run("Back", func(b *testing.B) { f.reconnect(b, size, server) })
	})
	all := func(*fleetClient) bool { return true }
	b.Run("Change", func(b *testing.B) { f.change(b, size, server, doReplace, all) })
	b.Run("ChangeInOneZone", func(b *testing.B) {
		concerned := func(c *fleetClient) bool { return c.zone == 0 }
		others := func(c *fleetClient) bool { return c.zone != 0 }
		before := f.messages(others)
		f.change(b, size, server, doReplaceInZone, concerned)
		size.goal(b, float64(f.messages(others)-before), "messages-to-others", 0)
	})
	b.Run("Stalled", func(b *testing.B) {
		for i, c := range f.clients {
			if i%10 == 0 {
				c.halt()
			}
		}
		before := server.do(b, doCollect, 0)
		f.change(b, size, server, doReplace, func(c *fleetClient) bool { return c.stall.Load() == nil })
		after := server.do(b, doCollect, 0)
		b.ReportMetric(float64(after.RSS-before.RSS)/(1<<20), "MB-more")
		for _, c := range f.clients {
			c.resume()
		}
		server.settled(b)
	})
}

// change makes changes, one after the other, each when all clients that it concerns have acknowledged the one before.
func (f *fleet) change(b *testing.B, size fleetSize, server *fleetServer, what string,
	concerned func(*fleetClient) bool) (milliseconds float64) {
	var clients []*fleetClient
	stalled := false
	for _, c := range f.clients {
		if concerned(c) {
			clients = append(clients, c)
		}
		stalled = stalled || c.stall.Load() != nil
	}
	read, written := f.traffic(concerned)
	before, changes := server.do(b, doUsage, 0), 0
	var latencies []time.Duration
	for b.Loop() {
		for range size.changes {
			want := f.batches.Load() + int64(len(clients))
			at := time.Now().UnixNano()
			f.changes++
			changes++
			server.do(b, what, f.changes)
			f.await(b, &f.batches, want)
			for _, c := range clients {
				latencies = append(latencies, time.Duration(c.arrived.Load()-at))
			}
		}
	}
	var after fleetUsage
	if stalled {
		after = server.do(b, doUsage, 0)
	} else {
		after = server.settled(b)
	}
	n := float64(len(clients)) * float64(changes)
	readNow, writtenNow := f.traffic(concerned)
	cpu := float64((after.CPU - before.CPU).Microseconds())
	milliseconds = cpu / 1000 / float64(changes)
	if size.floor > 0 {
		size.goal(b, milliseconds, "server-ms/change", 1.1*size.floor)
	} else {
		b.ReportMetric(milliseconds, "server-ms/change")
	}
	b.ReportMetric(cpu/n, "server-us/client")
	size.goal(b, float64(readNow-read)/n, "out-bytes/client", 130)
	size.goal(b, float64(writtenNow-written)/n, "in-bytes/client", 50)
	slices.Sort(latencies)
	b.ReportMetric(float64(latencies[len(latencies)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(latencies[len(latencies)*99/100].Microseconds())/1000, "p99-ms")
	return milliseconds
}

// reconnect cuts all clients off and connects them to a server, all at the same time. Nothing has changed.
func (f *fleet) reconnect(b *testing.B, size fleetSize, server *fleetServer) {
	var took, cpu time.Duration
	var most int64
	rounds := 0
	for b.Loop() {
		b.StopTimer()
		f.await(b, &f.digests, int64(len(f.clients))) // from heartbeats
		f.disconnect()
		resumed := f.resumed.Load()
		before := server.do(b, doCollect, 0)
		for _, c := range f.clients {
			c.read.Store(0)
			c.written.Store(0)
		}
		b.StartTimer()
		start := time.Now()
		f.connect(b, f.clients, server.address, len(f.clients))
		took += time.Since(start)
		require.Equal(b, resumed+int64(len(f.clients)), f.resumed.Load())
		cpu += server.settled(b).CPU - before.CPU
		for _, c := range f.clients {
			most = max(most, c.read.Load()-c.readBefore+c.written.Load()-c.writeBefore)
		}
		rounds++
	}
	b.ReportMetric(float64(f.retries.Swap(0))/float64(rounds), "retries")
	size.goal(b, took.Seconds()/float64(rounds), "s", 10)
	size.goal(b, float64(most), "most-bytes/client", 1024)
	b.ReportMetric(float64(cpu.Microseconds())/float64(rounds)/float64(len(f.clients)), "server-us/client")
}
