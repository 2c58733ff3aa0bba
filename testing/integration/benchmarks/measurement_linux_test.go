package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// How much is measured, and for how long at most.
const (
	maxChanges    = 15
	changesFor    = 20 * time.Second // a proxy that is slow shows fewer changes
	changeLimit   = time.Minute      // for one change to be applied
	burstSize     = 100
	burstLimit    = 2 * time.Minute
	quietFor      = 150 * time.Millisecond
	quietLimit    = 30 * time.Second
	minSyncPeriod = time.Second      // the default of both
	idleFor       = 35 * time.Second // a sync period is in it
	latencyRounds = 200
	latencySample = 64
)

// How the probe asks a service while the awaited pod does not answer yet: several times in a row, because that pod is
// one of ten, and then after a pause, which leaves the processors to the proxy. The pause grows with the time that is
// being measured, so that the probe does not slow down a slow change further: that figure is exact to a fiftieth, and
// that of a quick change to 2 ms.
const (
	askInARow  = 16
	minPause   = 2 * time.Millisecond
	maxPause   = 50 * time.Millisecond
	pauseShare = 50
)

// pause is how long to wait before a service is asked again, after a number of wrong answers and a time. It is the same
// for both proxies.
func pause(asked int, answered bool, since time.Duration) time.Duration {
	switch {
	case !answered:
		return minPause // it is not applied yet, which is cheap to find out
	case asked%askInARow > 0:
		return 0
	}
	return min(max(since/pauseShare, minPause), maxPause)
}

// measurement is one run of one proxy.
type measurement struct {
	b *testing.B
	comparison
	cluster *cluster.Cluster
	control controlPlane
	objects *objects
	program string
	result  *result

	network *network
	proxy   *proxy
}

// run measures everything, in an order in which nothing disturbs what follows. After an error the result has what was
// measured before.
func (m *measurement) run() error {
	m.network = newNetwork(m.b)
	settled, err := m.control.settle(restLimit)
	if err != nil {
		return err
	}
	m.result.unsettled = !settled
	for _, step := range []struct {
		name string
		do   func() error
		skip bool
	}{
		{"start", m.start, false}, {"rules", m.rules, m.brief}, {"latency", m.latency, m.brief},
		{"rest", m.rest, m.brief || !m.atRest}, {"changes", m.changes, false}, {"burst", m.burst, m.brief},
	} {
		if step.skip {
			continue
		}
		err := step.do()
		m.result.ownKiB, m.result.childKiB = m.proxy.peak.kib()
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// startTooLate means that a proxy did not serve everything in time.
type startTooLate struct {
	limit time.Duration
	last  error // what a service answered at the end
}

func (e *startTooLate) Error() string { return fmt.Sprintf("not within %s: %v", e.limit, e.last) }
func (e *startTooLate) Unwrap() error { return e.last }

// start runs the proxy until every service can be reached.
func (m *measurement) start() error {
	began := time.Now()
	deadline := began.Add(m.startLimit)
	m.proxy = startProxy(m.b, m.cluster, m.network, m.program, m.mode)
	pid := m.proxy.cmd.Process.Pid
	err := m.network.inNode(func() error {
		for i, service := range m.sample(16) {
			if err := m.untilReached(service, netip.Addr{}, deadline); err != nil {
				return err
			}
			if i == 0 {
				m.result.first = time.Since(began)
			}
		}
		m.result.all = time.Since(began)
		// The sample probably has the services that are applied last, so this finds few others, if any. Their time
		// counts.
		for service := range m.services {
			if _, _, err := askService(service); err == nil {
				continue
			}
			m.result.late++
			if err := m.untilReached(service, netip.Addr{}, deadline.Add(time.Minute)); err != nil {
				return err
			}
			m.result.all = time.Since(began)
		}
		return nil
	})
	if errors.Is(err, errDeadline) {
		return &startTooLate{m.startLimit, err}
	}
	if err != nil {
		return err
	}
	if err := m.quiet(); err != nil {
		return err
	}
	m.result.startCPU, err = processorTime(pid)
	return err
}

// sample returns n services, evenly chosen, among them the first and the last.
func (m *measurement) sample(n int) []int {
	n = min(n, m.services)
	var s []int
	for i := range n {
		s = append(s, i*(m.services-1)/(n-1))
	}
	slices.Reverse(s)
	return s
}

var errDeadline = errors.New("the deadline has passed")

// untilReached asks a service until any pod answers, or a particular one. It runs in the node's namespace.
func (m *measurement) untilReached(service int, pod netip.Addr, deadline time.Time) error {
	began := time.Now()
	for asked := 1; ; asked++ {
		got, _, err := askService(service)
		if err == nil && (!pod.IsValid() || got == pod) {
			return nil
		}
		if err := m.proxy.running(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("service %d: %w; last answer from %s", service, errDeadline, got), err)
		}
		time.Sleep(pause(asked, err == nil, time.Since(began)))
	}
}

// rules counts what the proxy has written.
func (m *measurement) rules() (err error) {
	if m.mode.iptables != "" {
		m.result.rules, err = m.proxy.rules(m.network)
	}
	return err
}

// latency measures new connections to services, in turn, so that other load affects all of them alike.
func (m *measurement) latency() error {
	sample := m.sample(latencySample)
	took := make([][]time.Duration, len(sample))
	var direct []time.Duration
	err := m.network.inNode(func() error {
		for range latencyRounds {
			for i, service := range sample {
				_, d, err := askService(service)
				if err != nil {
					return err
				}
				took[i] = append(took[i], d)
			}
			_, d, err := ask(netip.AddrPortFrom(address("10.128.0.0", 0), podPort))
			if err != nil {
				return err
			}
			direct = append(direct, d)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var medians []time.Duration
	for _, t := range took {
		medians = append(medians, percentile(t, 50))
	}
	m.result.fastest, m.result.slowest, m.result.direct = slices.Min(medians), slices.Max(medians),
		percentile(direct, 50)
	return nil
}

// rest measures what the proxy does when nothing changes.
func (m *measurement) rest() error {
	if err := m.quiet(); err != nil {
		return err
	}
	pid := m.proxy.cmd.Process.Pid
	ticksBefore, err := ticks(pid)
	if err != nil {
		return err
	}
	before, err := processorTime(pid)
	if err != nil {
		return err
	}
	time.Sleep(idleFor)
	after, err := processorTime(pid)
	if err != nil {
		return err
	}
	ticksAfter, err := ticks(pid)
	m.result.idleCPU, m.result.idleTicks, m.result.idleMeasured = after-before, ticksAfter-ticksBefore, true
	return err
}

// changes replaces one endpoint after the other.
func (m *measurement) changes() error {
	pid := m.proxy.cmd.Process.Pid
	if err := m.quiet(); err != nil {
		return err
	}
	cpuBefore, err := processorTime(pid)
	if err != nil {
		return err
	}
	for end := time.Now().Add(changesFor); len(m.result.changes) < maxChanges &&
		(time.Now().Before(end) || len(m.result.changes) < 3); {
		service := len(m.result.changes) * 7919 % m.services
		write, pod := m.objects.replace(m.b.Context(), service)
		var written time.Time
		began := time.Now()
		err := m.network.inNode(func() error {
			if err := write(); err != nil {
				return err
			}
			written = time.Now()
			return m.untilReached(service, pod, began.Add(changeLimit))
		})
		if err != nil {
			return err
		}
		m.result.changes = append(m.result.changes, time.Since(began))
		m.result.writes = append(m.result.writes, written.Sub(began))
		if err := m.quiet(); err != nil {
			return err
		}
		cpu, err := processorTime(pid)
		if err != nil {
			return err
		}
		m.result.changeCPU = (cpu - cpuBefore) / time.Duration(len(m.result.changes))
	}
	return nil
}

// burst replaces endpoints of many services at once.
func (m *measurement) burst() error {
	if err := m.quiet(); err != nil {
		return err
	}
	pid := m.proxy.cmd.Process.Pid
	before, err := processorTime(pid)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(m.b.Context(), burstLimit)
	defer cancel()
	n := min(burstSize, m.services)
	var writes []func() error
	var pods []netip.Addr
	for i := range n {
		write, pod := m.objects.replace(ctx, i*m.services/n)
		writes, pods = append(writes, write), append(pods, pod)
	}
	began := time.Now()
	if err := inParallel(n, func(i int) error { return writes[i]() }); err != nil {
		return err
	}
	err = m.network.inNode(func() error {
		for i := range n {
			if err := m.untilReached(i*m.services/n, pods[i], began.Add(burstLimit)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	m.result.burst = time.Since(began)
	if err := m.quiet(); err != nil {
		return err
	}
	after, err := processorTime(pid)
	m.result.burstCPU = after - before
	return err
}

// quiet waits until the proxy is idle and may act on the next change at once. A proxy that never becomes idle is
// measured all the same.
func (m *measurement) quiet() error {
	pid := m.proxy.cmd.Process.Pid
	began := time.Now()
	last, err := processorTime(pid)
	if err != nil {
		return err
	}
	for time.Since(began) < quietLimit {
		time.Sleep(quietFor)
		now, err := processorTime(pid)
		if err != nil {
			return errors.Join(err, m.proxy.running())
		}
		still := now-last < 2*time.Millisecond &&
			!m.proxy.peak.hasChild() // whose processor time is known after it has ended
		last = now
		if still && time.Since(began) > minSyncPeriod+quietFor {
			return nil
		}
	}
	m.result.busy++
	return nil
}
