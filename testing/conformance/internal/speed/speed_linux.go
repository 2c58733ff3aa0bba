package speed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// lister is implemented by a [program.Host] that can list its node's rules.
type lister interface {
	List(ctx context.Context) (command string, size int64, err error)
}

// Program is the program to be measured.
type Program struct {
	// Open creates a node's API server and prepares the program. It is called on a thread in the node's network
	// namespace.
	Open func(ctx context.Context) (program.Host, error)
	// Network lists the IP families of the network, and Families those that the program serves.
	Network, Families []model.Family
	// Objects are the Nodes and the ServiceCIDRs.
	Objects []metav1.Object
	// Cleans: the host implements Cleanup.
	Cleans bool
	// StartTimeout limits the time until the program serves. The plan may allow more.
	StartTimeout time.Duration
	// Rates are the change rates to measure, in changes per second, and Seed determines the source ports.
	Rates []int
	Seed  uint64
	// Watch is called with the network and the host of each size. What it begins for them ends with end. Busy says why
	// the machine was too busy for the program since a time, or "".
	Watch func(*network.Network, program.Host) (end func())
	Busy  func(since time.Time) string
	// Say is called with progress messages.
	Say func(format string, args ...any)
}

// Plan says how much is measured, and how long that may take.
type Plan struct {
	Single, Burst     int // numbers of changes
	SingleFor         time.Duration
	RateFor           time.Duration // duration of changes at each rate
	Start, Change     time.Duration // time limits
	Quiet, QuietLimit time.Duration // Quiet is longer than programs batch changes
	Rest              time.Duration // programs often do periodic work every 30 s
	// A listing starts ListAfter after the changes at a rate, and may take as long as Listing.
	ListAfter, Listing time.Duration
}

// DefaultPlan returns the plan used for reports.
func DefaultPlan() Plan {
	return Plan{Single: 20, Burst: 100, SingleFor: time.Minute, RateFor: 10 * time.Second,
		Start: 10 * time.Minute, Change: 2 * time.Minute, Quiet: 1200 * time.Millisecond, QuietLimit: 30 * time.Second,
		Rest: 35 * time.Second, ListAfter: time.Second, Listing: time.Minute}
}

// measurement measures a program at one size.
type measurement struct {
	Program
	*largeCluster
	Plan
	n      *network.Network
	node   *osthread.Thread
	host   program.Host
	ask    asker
	steady *steadyConnection
	began  time.Time // when the part that is being measured began
}

// Measure measures a program at each size, one after the other. Problems are recorded in the figures.
func Measure(ctx context.Context, p Program, plan Plan, sizes []program.Size) *report.Speed {
	speed := &report.Speed{Machine: machine()}
	for _, size := range sizes {
		if ctx.Err() != nil {
			break
		}
		figures := report.SpeedRun{Services: size.Services, Endpoints: size.Endpoints}
		if err := measureSize(ctx, p, plan, size, &figures); err != nil {
			figures.Problem = err.Error()
			p.Say("%v: %v", size, err)
		}
		speed.Runs = append(speed.Runs, figures)
	}
	return speed
}

// cleanupTimeout bounds the final clean-up.
const cleanupTimeout = 3 * time.Minute

// measureSize measures the program on a network of its own.
func measureSize(ctx context.Context, p Program, plan Plan, size program.Size, figures *report.SpeedRun) error {
	n, err := network.New(p.Network, p.Seed)
	if err != nil {
		return err
	}
	defer n.Close()
	r := &measurement{Program: p, largeCluster: newLargeCluster(size, p.Families[0]), Plan: plan, n: n}
	if err := n.ServeManyPods(r.family); err != nil {
		return err
	}
	if r.node, err = osthread.Enter(n.Node.FD()); err != nil {
		return err
	}
	defer r.node.Close()
	err = r.node.Do(func() (err error) {
		r.host, err = p.Open(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("prepare the program: %w", err)
	}
	defer r.host.Close()
	defer r.Watch(n, r.host)()
	err = r.measure(ctx, figures)
	if err != nil && ctx.Err() == nil {
		if why := r.Busy(r.began); why != "" {
			figures.NotMeasured = true
			err = fmt.Errorf("not measured, %s: %w", why, err)
		}
	}
	for _, rate := range figures.Rates {
		figures.Gap = max(figures.Gap, rate.Gap)
		if rate.PerSecond == 10 {
			figures.Churn = rate.Latency
			figures.Churn.Quantiles, figures.Churn.Judge = nil, nil // Rates has them too
		}
	}
	figures.Gap = max(figures.Gap, figures.Change.Gap, figures.Burst.Gap)
	if r.steady != nil {
		r.steady.end()
	}
	processor, memory := r.host.Usage()
	figures.CPU, figures.Memory = Milliseconds(processor), memory
	if p.Cleans { // the kernel removes the node faster when it has no rules
		ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
		defer cancel()
		_ = r.node.Do(func() error { return errors.Join(r.host.Stop(ctx), r.host.Cleanup(ctx)) })
	}
	return err
}

func (r *measurement) measure(ctx context.Context, figures *report.SpeedRun) error {
	r.began = time.Now()
	if err := r.put(ctx, slices.Concat(r.Objects, r.objects())...); err != nil {
		return err
	}
	began := time.Now()
	if err := r.node.Do(func() error { return r.host.Start(ctx) }); err != nil {
		return fmt.Errorf("start the program: %w", err)
	}
	reached, err := r.reachAll(ctx, began.Add(max(r.StartTimeout, r.Start)))
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	figures.Start = Milliseconds(reached.Sub(began))
	r.Say("%v: every service is reached after %v; asking all of them took until %v", r.Size,
		reached.Sub(began).Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	if err := r.settle(ctx); err != nil {
		return err
	}
	if figures.Rest, err = r.atRest(ctx); err != nil {
		return err
	}
	if r.steady, err = startSteady(r.n, r.flow(r.Services)); err != nil {
		return fmt.Errorf("the connection in the background: %w", err)
	}
	syns, err := r.chooseAsker(figures)
	if err != nil {
		return err
	}
	defer syns.Close()
	if _, can := r.host.(lister); can {
		r.list(ctx) // so that the host chooses the command now
		figures.Listing = r.list(ctx)
	}
	if err := r.part(ctx, "one change", &figures.Change, r.changeOne); err != nil {
		return err
	}
	if err := r.part(ctx, "100 at once", &figures.Burst, r.changeMany); err != nil {
		return err
	}
	for _, rate := range r.Rates {
		if err := r.measureRate(ctx, rate, figures); err != nil {
			return err
		}
	}
	return nil
}

// part measures changes that start and end while the program is idle.
func (r *measurement) part(ctx context.Context, name string, into *report.Latency,
	do func(context.Context) ([]*change, *report.Judge, error)) error {
	r.began = time.Now()
	if err := r.settle(ctx); err != nil {
		return err
	}
	before, _ := r.host.Usage()
	_, _ = r.steady.longest() // discard the pause; an error is returned again later
	changes, judge, err := do(ctx)
	*into = latency(changes)
	gap, lost := r.steady.longest()
	into.Gap, into.Judge = Milliseconds(gap), judge
	if err := errors.Join(err, lost); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	after, _ := r.host.Usage()
	into.CPU = Milliseconds(after - before)
	r.Say("%v: %s: p50 %.1f ms, p99 %.1f ms of %d; longest gap %.1f ms", r.Size, name, into.P50, into.P99, into.Count,
		into.Gap)
	return nil
}

func (r *measurement) put(ctx context.Context, objects ...metav1.Object) error {
	if err := r.node.Do(func() error { return r.host.Put(ctx, objects, nil) }); err != nil {
		return fmt.Errorf("write to the API server: %w", err)
	}
	return nil
}

func (r *measurement) flow(service int) network.Attempt {
	return network.HostNamed(network.LocalPod1).FlowTo(r.serviceAt(service), model.TCP, serviceName(service))
}

// reachAll waits until every service answers, and returns the time from which that was so, as far as it can tell. It
// probes a sample first, the last service first, because programs are likely to program that one last. Then it probes
// all services, which takes longer than many starts. A service that answers this at once may have done so for an
// unknown time, so after the sample only answers that reachAll had to wait for count.
func (r *measurement) reachAll(ctx context.Context, deadline time.Time) (reached time.Time, err error) {
	order := sample(16, r.Services)
	first := len(order)
	for i := range r.Services + 1 {
		order = append(order, i)
	}
	for n, service := range order {
		for wait := 20 * time.Millisecond; ; wait = min(wait*5/4, time.Second) {
			seen := r.n.Try(r.flow(service), network.Timeouts{Answer: wait})
			if seen.Verdict == oracle.Deliver {
				if waited := wait > 20*time.Millisecond; waited || n < first {
					reached = time.Now()
				}
				break
			}
			if err := r.goesOn(ctx, deadline); err != nil {
				return reached, fmt.Errorf("%w; of %v", err, seen)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return reached, nil
}

// goesOn returns an error if waiting is pointless.
func (r *measurement) goesOn(ctx context.Context, deadline time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.host.Ended():
		return r.host.Failure()
	default:
	}
	if time.Now().After(deadline) {
		return errTooLong
	}
	return nil
}

var errTooLong = errors.New("the program took too long")

// settle waits until the program is idle and likely to handle the next change at once, at most for QuietLimit.
func (r *measurement) settle(ctx context.Context) error {
	last, _ := r.host.Usage()
	for deadline := time.Now().Add(r.QuietLimit); time.Now().Before(deadline); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.host.Ended():
			return r.host.Failure()
		case <-time.After(r.Quiet):
		}
		now, _ := r.host.Usage()
		if now-last <= 20*time.Millisecond {
			break
		}
		last = now
	}
	return nil
}

// atRest measures the program while nothing changes.
func (r *measurement) atRest(ctx context.Context) (report.Rest, error) {
	before, _ := r.host.Usage()
	began := time.Now()
	select {
	case <-ctx.Done():
		return report.Rest{}, ctx.Err()
	case <-r.host.Ended():
		return report.Rest{}, r.host.Failure()
	case <-time.After(r.Rest):
	}
	after, _ := r.host.Usage()
	return report.Rest{Time: Milliseconds(time.Since(began)), CPU: Milliseconds(after - before)}, nil
}

// steadyConnection is a connection that sends continuously.
type steadyConnection struct {
	connection *network.Connection
	stop       chan struct{}
	wg         sync.WaitGroup

	mu   sync.Mutex
	last time.Time
	most time.Duration
	err  error
}

func startSteady(n *network.Network, flow network.Attempt) (*steadyConnection, error) {
	connection, err := n.Open(flow, time.Now().Add(10*time.Second))
	if err != nil {
		return nil, err
	}
	s := &steadyConnection{connection: connection, stop: make(chan struct{}), last: time.Now()}
	s.wg.Go(func() {
		for s.ask() {
			select {
			case <-s.stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return s, nil
}

func (s *steadyConnection) ask() bool {
	_, err := s.connection.Ask(time.Now().Add(time.Minute))
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.most, s.last, s.err = max(s.most, now.Sub(s.last)), now, err
	return err == nil
}

// longest returns the longest time without an answer since the last call, and the error that ended the connection, if
// any.
func (s *steadyConnection) longest() (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := max(s.most, time.Since(s.last))
	s.most = 0
	if s.err != nil {
		return most, fmt.Errorf("the connection in the background was lost: %w", s.err)
	}
	return most, nil
}

func (s *steadyConnection) end() {
	close(s.stop)
	s.connection.Close()
	s.wg.Wait()
}

// machine describes the machine.
func machine() string {
	text := fmt.Sprintf("%d processors", runtime.NumCPU())
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if key, model, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
				text = fmt.Sprintf("%d x %s", runtime.NumCPU(), strings.TrimSpace(model))
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		text += ", load average " + strings.Fields(string(b))[0] + " at the beginning"
	}
	return text
}
