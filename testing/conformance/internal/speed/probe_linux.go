package speed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// asker makes connections to a service and calls saw with each pod that one has reached, possibly in an earlier call.
// It may stop early once saw has returned true.
type asker func(service, times int, saw func(netip.Addr) bool) error

// The values of SpeedRun.Probing in reports.
const (
	bySYNs        = "SYNs"
	byConnections = "connections"
)

// chooseAsker uses SYNs if they reveal the selected endpoint, otherwise complete connections. The caller closes the
// result.
func (r *measurement) chooseAsker(figures *report.SpeedRun) (*network.SYNs, error) {
	syns, err := r.n.WatchSYNs(network.LocalPod1, r.family)
	if err != nil {
		return nil, err
	}
	seen := false
	deadline := time.Now().Add(2 * time.Second)
	for ; !seen && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		err := r.askBySYNs(syns)(0, asksInARow, func(pod netip.Addr) bool {
			seen = seen || slices.Contains(r.pods[0], pod)
			return seen
		})
		if err != nil {
			syns.Close()
			return nil, err
		}
	}
	figures.Probing, r.ask = bySYNs, r.askBySYNs(syns)
	if !seen {
		figures.Probing, r.ask = byConnections, r.askByConnections
	}
	return syns, nil
}

// asksInARow is the number of connections per try: the new endpoint is one of several.
const asksInARow = 16

func (r *measurement) askBySYNs(syns *network.SYNs) asker {
	return func(service, times int, saw func(netip.Addr) bool) error {
		to := r.serviceAt(service)
		for i := range times {
			if err := syns.Send(to); err != nil {
				return err
			}
			if i%4 != 3 && i != times-1 {
				continue
			}
			pods, err := syns.Arrived()
			if err != nil {
				return err
			}
			done := false
			for _, pod := range pods {
				done = saw(pod) || done
			}
			if done {
				return nil
			}
		}
		return nil
	}
}

func (r *measurement) askByConnections(service, times int, saw func(netip.Addr) bool) error {
	for range times {
		seen := r.n.Try(r.flow(service), network.Timeouts{Answer: time.Second})
		if seen.Verdict != oracle.Deliver || saw(seen.Endpoint.Addr()) {
			return nil
		}
	}
	return nil
}

// prober detects when changes show. It shares the CPUs with the program, so it probes as little as possible: a few open
// changes at a time, with pauses of a twentieth of the time that they have taken so far. Programs apply many changes in
// one transaction, so once a change shows, the prober tries all others without a pause until no more show.
type prober struct {
	ask       asker
	endpoints int

	mu       sync.Mutex
	incoming []news
	wake     chan struct{} // signals new entries in incoming

	open  []*change // not shown yet, oldest first
	byPod map[netip.Addr]*change
	next  int  // index in open of the next one to probe
	shown bool // a change has shown since this was reset
	// replaced counts the changes whose endpoint was replaced before they showed.
	replaced int
}

// news is an entry of prober.incoming: a change to probe, or a pod that was removed.
type news struct {
	change *change
	gone   netip.Addr
}

func newProber(ask asker, endpoints int) *prober {
	return &prober{ask: ask, endpoints: endpoints, byPod: map[netip.Addr]*change{}, wake: make(chan struct{}, 1)}
}

// add reports changes that are being written, probed or not. It may be called concurrently with probe.
func (p *prober) add(changes []*change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range changes {
		p.incoming = append(p.incoming, news{gone: c.old})
		if c.probed {
			p.incoming = append(p.incoming, news{change: c})
		}
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// take processes incoming, and reports whether a change is open.
func (p *prober) take() bool {
	p.mu.Lock()
	list := p.incoming
	p.incoming = nil
	p.mu.Unlock()
	for _, n := range list {
		switch c := p.byPod[n.gone]; {
		case n.change != nil:
			p.open = append(p.open, n.change)
			p.byPod[n.change.pod] = n.change
		case c != nil:
			p.close(c)
			p.replaced++
		}
	}
	return len(p.open) > 0
}

func (p *prober) close(c *change) {
	delete(p.byPod, c.pod)
	p.open = slices.DeleteFunc(p.open, func(o *change) bool { return o == c })
}

// saw records that a pod was reached. It reports whether a change of that service has shown.
func (p *prober) saw(service int) func(netip.Addr) bool {
	return func(pod netip.Addr) bool {
		c := p.byPod[pod]
		if c == nil {
			return false
		}
		c.took = max(time.Since(c.since), 1)
		p.shown = true
		p.close(c)
		return c.service == service
	}
}

// changesInTurn is the number of changes probed between pauses.
const changesInTurn = 4

// probe probes some of the open changes, and all of them once one shows.
func (p *prober) probe() error {
	p.shown = false
	times := min(asksInARow, (p.endpoints*4+4)/5)
	for range min(changesInTurn, len(p.open)) {
		if len(p.open) == 0 {
			return nil
		}
		c := p.open[p.next%len(p.open)]
		p.next++
		if err := p.ask(c.service, times, p.saw(c.service)); err != nil {
			return err
		}
	}
	if !p.shown {
		return nil
	}
	for silent := 0; silent < 3; silent++ {
		p.shown = false
		for _, c := range slices.Clone(p.open) {
			if c.took > 0 {
				continue
			}
			if err := p.ask(c.service, min(asksInARow, 2*p.endpoints), p.saw(c.service)); err != nil {
				return err
			}
		}
		if p.shown {
			silent = -1
		}
	}
	return nil
}

// pause returns how long to wait after probing has taken this long.
func (p *prober) pause(asking time.Duration) time.Duration {
	pause := max(asking, 100*time.Microsecond)
	if len(p.open) > 0 {
		pause = max(pause, time.Since(p.open[len(p.open)/2].since)/20)
	}
	return min(pause, 50*time.Millisecond)
}

// follow calls write, which adds changes to the prober, and returns when all of them show. After write has returned,
// they must show within the time limit for a change.
func (r *measurement) follow(ctx context.Context, p *prober, write func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- write(ctx) }()
	deadline, writing := time.Now().Add(time.Hour), true
	for p.take() || writing {
		began := time.Now()
		if err := errors.Join(p.probe(), r.goesOn(ctx, deadline)); err != nil {
			if cancel(); writing {
				<-ended
			}
			return fmt.Errorf("%w; %d changes do not show", err, len(p.open))
		}
		var resume <-chan time.Time
		switch {
		case len(p.open) > 0:
			resume = time.After(p.pause(time.Since(began)))
		case !writing:
			return nil
		}
		select {
		case err := <-ended:
			if err != nil {
				return err
			}
			deadline, writing = time.Now().Add(r.Change), false
		case <-p.wake:
		case <-resume:
		}
	}
	return nil
}

// again repeats the probing of changes that have shown already, and returns the latencies: the judge's share of what
// was measured.
func (r *measurement) again(ctx context.Context, together bool, changes []*change) (*report.Judge, error) {
	var copies []*change
	for _, c := range changes {
		if c.took > 0 && slices.Contains(r.pods[c.service], c.pod) {
			copies = append(copies, &change{service: c.service, pod: c.pod})
		}
	}
	size := 1
	if together {
		size = max(1, len(copies))
	}
	for some := range slices.Chunk(copies, size) {
		p := newProber(r.ask, r.Endpoints)
		for _, c := range some {
			c.since, c.probed = time.Now(), true
		}
		p.add(some)
		if err := r.follow(ctx, p, func(context.Context) error { return nil }); err != nil {
			return nil, fmt.Errorf("probe the changes again: %w", err)
		}
	}
	l := latency(copies)
	return &report.Judge{P50: l.P50, P99: l.P99}, nil
}
