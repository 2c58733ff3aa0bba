package brain

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// perSecond counts what happens in each second.
type perSecond struct {
	mu sync.Mutex
	n  map[int64]int
}

func (p *perSecond) count() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n == nil {
		p.n = map[int64]int{}
	}
	p.n[time.Now().Unix()]++
}

func (p *perSecond) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n = map[int64]int{}
}

func (p *perSecond) peak() (most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.n {
		most = max(most, n)
	}
	return most
}

// simProbes are changes of which it is followed when nodes have them.
type simProbes struct {
	mu      sync.Mutex
	list    []simProbe
	latency map[time.Duration]int // in steps of 10 ms
}

type simProbe struct {
	clock int
	at    time.Time
	last  time.Duration // until the last node had it
}

// sent notes a change that has just been made.
func (p *simProbes) sent(clock int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, simProbe{clock: clock, at: time.Now()})
}

// got records that a node has the state as of clock. next is the first probe that the node had not seen before; got
// returns the first one that it has not seen now.
func (p *simProbes) got(next, clock int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; next < len(p.list) && p.list[next].clock <= clock; next++ {
		took := time.Since(p.list[next].at)
		p.list[next].last = max(p.list[next].last, took)
		if p.latency == nil {
			p.latency = map[time.Duration]int{}
		}
		p.latency[took.Truncate(10*time.Millisecond)]++
	}
	return next
}

func (p *simProbes) all() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.list)
}

func (p *simProbes) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list, p.latency = nil, map[time.Duration]int{}
}

// slowest is the longest time that a change took to reach a node.
func (p *simProbes) slowest() (most time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, probe := range p.list {
		most = max(most, probe.last)
	}
	return most
}

func (p *simProbes) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.list) == 0 {
		return "no changes"
	}
	total := 0
	var steps []time.Duration
	for d, n := range p.latency {
		total += n
		steps = append(steps, d)
	}
	slices.Sort(steps)
	quantile := func(q float64) time.Duration {
		left := int(q * float64(total))
		for _, d := range steps {
			if left -= p.latency[d]; left <= 0 {
				return d + 10*time.Millisecond
			}
		}
		return 0
	}
	last := make([]time.Duration, len(p.list))
	for i := range p.list {
		last[i] = p.list[i].last
	}
	slices.Sort(last)
	return fmt.Sprintf("a change reached a node in p50 %v, p99 %v, and all nodes in p50 %v, p99 %v", quantile(0.5),
		quantile(0.99), last[len(last)/2].Round(time.Millisecond), last[len(last)*99/100].Round(time.Millisecond))
}
