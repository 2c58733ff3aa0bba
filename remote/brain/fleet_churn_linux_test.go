package brain

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fleetChurn are changes of single endpoints at an even pace, by the clock of the machine: servers with the same
// parameters make the same changes at the same time, as if they watched the same API server.
type fleetChurn struct {
	First      int     // the number of the first change
	Rate       float64 // a second
	Begin, End time.Time
}

// at is how many changes have been made at a time.
func (c fleetChurn) at(t time.Time) int {
	if t.After(c.End) {
		t = c.End
	}
	return int(t.Sub(c.Begin).Seconds() * c.Rate)
}

// churnTick is how often changes are made, if there are that many.
const churnTick = 5 * time.Millisecond

func (c fleetChurn) run(spec fleetSpec, source *cluster, churned *atomic.Int64) {
	tick := time.NewTicker(churnTick)
	defer tick.Stop()
	for made, last := 0, c.at(c.End); made < last; {
		due := c.at(<-tick.C)
		for ; made < due; made++ {
			source.set(c.change(spec, made))
			churned.Add(1)
		}
	}
}

// change is the EndpointSlice of a service with another endpoint, on another node.
func (c fleetChurn) change(spec fleetSpec, made int) metav1.Object {
	n := c.First + made
	slice := spec.slice(n*7919%spec.Services, 1+n)
	slice.SetResourceVersion(strconv.Itoa(1_000_000 + n))
	return slice
}

// churnTimes are those of BenchmarkFleetChurn.
type churnTimes struct {
	duration time.Duration // for which the cluster changes at each rate: KPL_CHURN, a minute at full size
	pause    time.Duration // of a client after it has applied something: KPL_PAUSE, what Run leaves after a Sync of 1 ms
	interval time.Duration // between two revisions: KPL_INTERVAL, by cost
}

func churnTimesOf(b *testing.B, size fleetSize) churnTimes {
	t := churnTimes{duration: 100 * time.Millisecond, pause: 9 * time.Millisecond}
	if size.full {
		t.duration = time.Minute
	}
	for name, d := range map[string]*time.Duration{
		"KPL_CHURN": &t.duration, "KPL_PAUSE": &t.pause, "KPL_INTERVAL": &t.interval,
	} {
		if text := os.Getenv(name); text != "" {
			var err error
			*d, err = time.ParseDuration(text)
			require.NoError(b, err)
		}
	}
	return t
}

// churnGoals are the times from a change to its acknowledgement that 99 of 100 are to keep at 100 changes a second, by
// the number of clients.
var churnGoals = []struct {
	clients int
	p99     time.Duration
}{{100, 50 * time.Millisecond}, {1000, 250 * time.Millisecond}, {5000, 1500 * time.Millisecond}}

// BenchmarkFleetChurn is a cluster that never rests: so many endpoints are replaced each second, and clients that have
// their states pause after each acknowledgement, as proxies do. At full size versions are kept for a quarter of the
// time that it takes, not for 10 minutes, so that it can be seen whether what is kept grows. With KPL_PAUSE=1s
// KPL_INTERVAL=100ms it is as it was before nodes and servers paused by cost. Run it with -benchtime 1x: its parts
// share the fleet.
func BenchmarkFleetChurn(b *testing.B) {
	size := benchmarkSize()
	if !size.full {
		b.Run(fmt.Sprintf("%dClients", size.clients), func(b *testing.B) { fleetChurns(b, size, math.Inf(1), true) })
		return
	}
	for _, goal := range churnGoals {
		size := size
		size.clients = goal.clients
		b.Run(fmt.Sprintf("%dClients", size.clients), func(b *testing.B) {
			fleetChurns(b, size, goal.p99.Seconds(), size.clients >= size.Nodes)
		})
	}
}

// fleetChurns changes the cluster of a fleet at several rates. Afterwards, all clients of a fleet that fails over go to
// another server, first while nothing changes, then while 100 endpoints change each second. The second cost is compared
// without that of the changes, which the clients would have been sent in the same time anyway.
func fleetChurns(b *testing.B, size fleetSize, goal float64, failsOver bool) {
	times := churnTimesOf(b, size)
	pause := times.pause
	size.Churn, size.Interval, size.Keep = true, times.interval, times.duration/4
	if !size.full {
		size.Keep = time.Minute // on a busy machine clients are behind for longer than the changes take
	}
	ca := newAuthority(b)
	servers := []*fleetServer{startFleetServer(b, size.fleetSpec, ca), startFleetServer(b, size.fleetSpec, ca)}
	f := newFleet(b, ca, size.clients)
	states := newLightStates()
	for _, s := range servers { // what they have to know is there before all come
		resident := newFleet(b, ca, len(fleetZones))
		resident.light(states, pause)
		resident.connect(b, resident.clients, s.address, 1)
	}
	f.light(states, pause)
	f.connect(b, f.clients, servers[0].address, 32)
	servers[0].settled(b)
	for _, rate := range []float64{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("%vPerSecond", rate), func(b *testing.B) {
			for b.Loop() { // once
				f.churn(b, size, servers, rate, times.duration, goal)
			}
		})
	}
	if !failsOver {
		return
	}
	var quiet failoverCost
	b.Run("FailoverQuiet", func(b *testing.B) {
		for b.Loop() { // once
			quiet = f.failOver(b, servers[1])
		}
	})
	b.Run("FailoverUnderChurn", func(b *testing.B) {
		for b.Loop() { // once
			f.begin(b, servers, 100, 10*time.Minute)
			time.Sleep(times.duration / 12)
			churn := f.stay(b, servers[1], times.duration/6)
			busy := f.failOver(b, servers[0])
			b.ReportMetric(busy.cpu/max(quiet.cpu, 1), "cpu-ratio")
			b.ReportMetric(busy.bytes/max(quiet.bytes, 1), "bytes-ratio")
			size.goal(b, (busy.cpu-churn.cpu*busy.all)/max(quiet.cpu, 1), "cpu-over-churn-ratio", 2)
			size.goal(b, (busy.bytes-churn.bytes*busy.away)/max(quiet.bytes, 1), "bytes-over-churn-ratio", 2)
		}
	})
}

// stay measures what each client costs in a second while all stay where they are.
func (f *fleet) stay(b *testing.B, server *fleetServer, duration time.Duration) (each failoverCost) {
	all := func(*fleetClient) bool { return true }
	read, written := f.traffic(all)
	before, start := server.do(b, doUsage, 0), time.Now()
	time.Sleep(duration)
	after, took := server.do(b, doUsage, 0), time.Since(start).Seconds()
	readNow, writtenNow := f.traffic(all)
	per := took * float64(len(f.clients))
	each = failoverCost{cpu: float64((after.CPU - before.CPU).Microseconds()) / per,
		bytes: float64(readNow-read+writtenNow-written) / per}
	b.ReportMetric(each.cpu, "churn-us/client/s")
	b.ReportMetric(each.bytes, "churn-bytes/client/s")
	return each
}

// light makes clients that have a state.
func (f *fleet) light(states *lightStates, pause time.Duration) {
	for _, c := range f.clients {
		c.light, c.pause = &lightNode{name: c.node, states: states}, pause
	}
}

// begin changes the cluster of all servers for a time.
func (f *fleet) begin(b *testing.B, servers []*fleetServer, rate float64, duration time.Duration) {
	begin := time.Now()
	churn := fleetChurn{First: f.changes, Rate: rate, Begin: begin, End: begin.Add(duration)}
	f.changes += churn.at(churn.End)
	for _, s := range servers {
		s.command(b, fleetCommand{Do: doChurn, Churn: churn})
	}
}

// churn changes the cluster for a time, and reports what the second half of it costs.
func (f *fleet) churn(b *testing.B, size fleetSize, servers []*fleetServer, rate float64, duration time.Duration,
	goal float64) {
	f.begin(b, servers, rate, duration)
	server, all := servers[0], func(*fleetClient) bool { return true }
	time.Sleep(duration / 2)
	read, written := f.traffic(all)
	before, start := server.do(b, doUsage, 0), time.Now()
	time.Sleep(duration/2 - duration/20)
	after, took := server.do(b, doUsage, 0), time.Since(start).Seconds()
	readNow, writtenNow := f.traffic(all)
	clients := float64(len(f.clients))
	cores := (after.CPU - before.CPU).Seconds() / took
	p50, p99 := quantile(before, after, 0.5), quantile(before, after, 0.99)
	if rate == 100 {
		size.goal(b, cores, "cores", 0.5)
		size.goal(b, p99, "p99-s", goal)
	} else {
		b.ReportMetric(cores, "cores")
		b.ReportMetric(p99, "p99-s")
	}
	b.ReportMetric(p50, "p50-s")
	b.ReportMetric(float64(after.Revision-before.Revision)/took, "revisions/s")
	b.ReportMetric(float64(after.Batches["diff"]-before.Batches["diff"])/took/clients, "batches/client/s")
	b.ReportMetric(1e6*cores*took/max(float64(after.Batches["diff"]-before.Batches["diff"]), 1), "us/batch")
	b.ReportMetric(float64(readNow-read)/took/clients, "out-bytes/client/s")
	b.ReportMetric(float64(writtenNow-written)/took/clients, "in-bytes/client/s")
	b.ReportMetric(float64(before.Kept)/1024, "kept-KB-half")
	b.ReportMetric(float64(after.Kept)/1024, "kept-KB-end")
	b.ReportMetric(float64(after.RSS)/(1<<20), "MB")
	for _, s := range servers {
		for s.do(b, doUsage, 0).Churned < f.changes {
			time.Sleep(churnTick)
		}
		s.settled(b)
	}
}

// quantile is how long it took from the first change in a batch to its acknowledgement, of those between two readings.
func quantile(before, after fleetUsage, q float64) (seconds float64) {
	n := len(after.Delivered)
	total := after.Delivered[n-1] - before.Delivered[n-1]
	for i := range n - 1 {
		if float64(after.Delivered[i]-before.Delivered[i]) >= q*float64(total) {
			return float64(i+1) / 100
		}
	}
	return math.Inf(1)
}

// failoverCost is what it costs to have one more client that has been elsewhere.
type failoverCost struct {
	cpu, bytes float64 // microseconds, until all have come; and bytes until the client is up to date
	all, away  float64 // seconds until all have come, and those for which a client was without a server, on average
}

// failOver has all clients leave their server and connect to another one, all at the same time.
func (f *fleet) failOver(b *testing.B, to *fleetServer) failoverCost {
	left := time.Now()
	f.disconnect()
	before, start := to.do(b, doUsage, 0), time.Now()
	for _, c := range f.clients {
		c.read.Store(0)
		c.written.Store(0)
		c.begun.Store(0)
	}
	f.connect(b, f.clients, to.address, len(f.clients))
	after, took := to.do(b, doUsage, 0), time.Since(start)
	var bytes int64
	var away time.Duration
	for _, c := range f.clients {
		bytes += c.begun.Load()
		away += time.Unix(0, c.begunAt.Load()).Sub(left)
	}
	n := float64(len(f.clients))
	cost := failoverCost{cpu: float64((after.CPU - before.CPU).Microseconds()) / n, bytes: float64(bytes) / n,
		all: took.Seconds(), away: away.Seconds() / n}
	b.ReportMetric(cost.cpu, "server-us/client")
	b.ReportMetric(cost.bytes, "bytes/client")
	b.ReportMetric(took.Seconds(), "s")
	b.ReportMetric(cost.away, "away-s/client")
	for _, kind := range []string{"reset", "resumed", "resumed_diff", "compared", "later"} {
		b.ReportMetric(float64(after.Batches[kind]-before.Batches[kind]), kind)
	}
	return cost
}

// readChurn adds to a server's usage what BenchmarkFleetChurn asks for.
func (u *fleetUsage) readChurn(s *Server) {
	s.work.Lock()
	if s.pending { // nobody has been told yet
		u.Behind++
	}
	s.work.Unlock()
	s.mu.Lock()
	for _, c := range s.classes {
		u.Kept += c.kept
	}
	u.Revision = s.revision
	s.mu.Unlock()
	var delivered dto.Metric
	_ = s.metrics.delivery.Write(&delivered) // it does not fail
	for _, b := range delivered.Histogram.Bucket {
		u.Delivered = append(u.Delivered, b.GetCumulativeCount())
	}
	u.Delivered = append(u.Delivered, delivered.Histogram.GetSampleCount())
}

// fineDelivery is the histogram that readChurn reads, in steps of 10 ms.
func fineDelivery() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "delivery", Help: "fine",
		Buckets: prometheus.LinearBuckets(0.01, 0.01, 1000)})
}
