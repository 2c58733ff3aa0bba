package conformance

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

	"sigs.k8s.io/kube-proxy-lib/internal/osthread"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// speedPlan is how much is measured, and for how long at most.
type speedPlan struct {
	single, burst, churn int // numbers of changes
	singleFor            time.Duration
	churnEvery           time.Duration
	start, change        time.Duration // how long they may take
	quiet, quietLimit    time.Duration // quiet is longer than programs collect changes
	rest                 time.Duration // programs often do something every 30 s
}

func defaultSpeedPlan() speedPlan {
	return speedPlan{single: 20, burst: 100, churn: 100, singleFor: time.Minute, churnEvery: 100 * time.Millisecond,
		start: 10 * time.Minute, change: 2 * time.Minute, quiet: 1200 * time.Millisecond, quietLimit: 30 * time.Second,
		rest: 35 * time.Second}
}

// speedRun measures a program at one size.
type speedRun struct {
	*judging
	*largeCluster
	speedPlan
	n      *network.Network
	node   *osthread.Thread
	host   Host
	steady *steadyConnection
}

// measureSpeed measures the program at each size, one after the other. What goes wrong is in the figures.
func (j *judging) measureSpeed(ctx context.Context, plan speedPlan) *report.Speed {
	if len(j.Sizes) == 0 || j.problem != nil {
		return nil
	}
	speed := &report.Speed{Machine: machine()}
	for _, size := range j.Sizes {
		if ctx.Err() != nil {
			break
		}
		figures := report.SpeedRun{Services: size.Services, Endpoints: size.Endpoints}
		if err := j.measureSize(ctx, plan, size, &figures); err != nil {
			figures.Problem = err.Error()
			j.say("%v: %v", size, err)
		}
		speed.Runs = append(speed.Runs, figures)
	}
	return speed
}

// measureSize measures the program on a network of its own.
func (j *judging) measureSize(ctx context.Context, plan speedPlan, size Size, figures *report.SpeedRun) error {
	n, err := network.New(j.families, j.Seed)
	if err != nil {
		return err
	}
	defer n.Close()
	env := j.base.env(Factory{Lacks: j.lacks}.families())
	r := &speedRun{judging: j, largeCluster: newLargeCluster(size, env.Families[0]),
		speedPlan: plan, n: n}
	if err := n.ServeManyPods(r.family); err != nil {
		return err
	}
	if r.node, err = osthread.Enter(n.Node.FD()); err != nil {
		return err
	}
	defer r.node.Close()
	env.ID, env.NetNS = "speed", n.Node.File
	err = r.node.Do(func() (err error) {
		r.host, err = j.Open(ctx, env, j.base.configuration(env.Families))
		return err
	})
	if err != nil {
		return fmt.Errorf("prepare the program: %w", err)
	}
	defer r.host.Close()
	err = r.measure(ctx, env.Families, figures)
	if r.steady != nil {
		r.steady.end()
	}
	processor, memory := r.host.Usage()
	figures.CPU, figures.Memory = milliseconds(processor), memory
	if j.Cleans { // nothing else runs on this node, but the kernel is quicker about an empty one
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		_ = r.node.Do(func() error { return errors.Join(r.host.Stop(ctx), r.host.Cleanup(ctx)) })
	}
	return err
}

func (r *speedRun) measure(ctx context.Context, families []model.Family, figures *report.SpeedRun) error {
	nodes := append(r.base.objects(families), otherNodes(families)...)
	if err := r.put(ctx, append(nodes, r.objects()...)...); err != nil {
		return err
	}
	began := time.Now()
	if err := r.node.Do(func() error { return r.host.Start(ctx) }); err != nil {
		return fmt.Errorf("start the program: %w", err)
	}
	if err := r.reachAll(ctx, began.Add(max(r.StartTimeout, r.start))); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	figures.Start = milliseconds(time.Since(began))
	r.say("%v: every service is reached after %v", r.Size, time.Since(began).Round(time.Millisecond))
	if err := r.settle(ctx); err != nil {
		return err
	}
	var err error
	if figures.Rest, err = r.atRest(ctx); err != nil {
		return err
	}
	if r.steady, err = startSteady(r.n, r.flow(r.Services)); err != nil {
		return fmt.Errorf("the connection in the background: %w", err)
	}
	for _, part := range []struct {
		name string
		into *report.Latency
		do   func(context.Context) ([]*change, error)
	}{
		{"one change", &figures.Change, r.changeOne}, {"100 at once", &figures.Burst, r.changeMany},
		{"ten a second", &figures.Churn, r.changeSteadily},
	} {
		if err := r.settle(ctx); err != nil {
			return err
		}
		before, _ := r.host.Usage()
		_, _ = r.steady.longest() // of the pause: an error comes again
		changes, err := part.do(ctx)
		*part.into = latency(changes)
		gap, lost := r.steady.longest()
		part.into.Gap = milliseconds(gap)
		figures.Gap = max(figures.Gap, part.into.Gap)
		if err := errors.Join(err, lost); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		if err := r.settle(ctx); err != nil {
			return err
		}
		after, _ := r.host.Usage()
		part.into.CPU = milliseconds(after - before)
		r.say("%v: %s: p50 %.1f ms, p99 %.1f ms of %d; longest gap %.1f ms", r.Size, part.name, part.into.P50,
			part.into.P99, part.into.Count, part.into.Gap)
	}
	return nil
}

func (r *speedRun) put(ctx context.Context, objects ...metav1.Object) error {
	if err := r.node.Do(func() error { return r.host.Put(ctx, objects, nil) }); err != nil {
		return fmt.Errorf("write to the API server: %w", err)
	}
	return nil
}

func (r *speedRun) flow(service int) network.Attempt {
	return network.PlaceNamed(localPod1).FlowTo(r.serviceAt(service), model.TCP, serviceName(service))
}

// reachAll waits until every service answers. A sample is asked first, the last service first: programs are likely to
// get to these at the end.
func (r *speedRun) reachAll(ctx context.Context, deadline time.Time) error {
	order := r.sample(16)
	for i := range r.Services + 1 {
		order = append(order, i)
	}
	for _, service := range order {
		for wait := 20 * time.Millisecond; ; wait = min(wait*5/4, time.Second) {
			seen := r.n.Try(r.flow(service), network.Patience{Answer: wait})
			if seen.Verdict == oracle.Deliver {
				break
			}
			if err := r.goesOn(ctx, deadline); err != nil {
				return fmt.Errorf("%w; of %v", err, seen)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

// goesOn returns why there is nothing to wait for any more.
func (r *speedRun) goesOn(ctx context.Context, deadline time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.host.Ended():
		return r.host.Failure()
	default:
	}
	if time.Now().After(deadline) {
		return errors.New("the program took too long")
	}
	return nil
}

// settle waits until the program is idle and may act on the next change at once, or for quietLimit.
func (r *speedRun) settle(ctx context.Context) error {
	last, _ := r.host.Usage()
	for deadline := time.Now().Add(r.quietLimit); time.Now().Before(deadline); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.host.Ended():
			return r.host.Failure()
		case <-time.After(r.quiet):
		}
		now, _ := r.host.Usage()
		if now-last <= 20*time.Millisecond {
			break
		}
		last = now
	}
	return nil
}

// atRest measures what the program does when nothing changes.
func (r *speedRun) atRest(ctx context.Context) (report.Rest, error) {
	before, _ := r.host.Usage()
	began := time.Now()
	select {
	case <-ctx.Done():
		return report.Rest{}, ctx.Err()
	case <-r.host.Ended():
		return report.Rest{}, r.host.Failure()
	case <-time.After(r.rest):
	}
	after, _ := r.host.Usage()
	return report.Rest{Time: milliseconds(time.Since(began)), CPU: milliseconds(after - before)}, nil
}

// write writes changes to the API.
func (r *speedRun) write(ctx context.Context, changes ...*change) error {
	objects := map[string]metav1.Object{} // the last one of each name
	var order []string
	for _, c := range changes {
		name := c.object.GetName()
		if objects[name] == nil {
			order = append(order, name)
		}
		objects[name], c.written = c.object, time.Now()
	}
	list := make([]metav1.Object, 0, len(order))
	for _, name := range order {
		list = append(list, objects[name])
	}
	return r.put(ctx, list...)
}

// asksInARow is how often a service is asked in turn: the new endpoint is one of several.
const asksInARow = 16

// look asks the services of changes that have not shown yet, once around.
func (r *speedRun) look(open []*change) []*change {
	return slices.DeleteFunc(open, func(c *change) bool {
		for range asksInARow {
			seen := r.n.Try(r.flow(c.service), network.Patience{Answer: time.Second})
			if seen.Verdict != oracle.Deliver {
				return false
			}
			if seen.Endpoint.Addr() == c.pod {
				c.took = time.Since(c.written)
				return true
			}
		}
		return false
	})
}

// await waits until all changes show.
func (r *speedRun) await(ctx context.Context, open []*change) error {
	began := time.Now()
	for open = r.look(open); len(open) > 0; open = r.look(open) {
		if err := r.goesOn(ctx, began.Add(r.change)); err != nil {
			return fmt.Errorf("%w; %d changes do not show", err, len(open))
		}
		// The program has the processors to itself for a fiftieth of the time so far.
		time.Sleep(min(max(time.Since(began)/50, time.Millisecond), 50*time.Millisecond))
	}
	return nil
}

// changeOne makes one change after the other, each while the program is idle.
func (r *speedRun) changeOne(ctx context.Context) (changes []*change, err error) {
	end := time.Now().Add(r.singleFor)
	for len(changes) < r.single && (time.Now().Before(end) || len(changes) < 3) {
		if err := r.settle(ctx); err != nil {
			return changes, err
		}
		c := r.replace(len(changes) * 7919 % r.Services)
		changes = append(changes, c)
		if err := errors.Join(r.write(ctx, c), r.await(ctx, []*change{c})); err != nil {
			return changes, err
		}
	}
	return changes, nil
}

// changeMany changes many services at once, or all.
func (r *speedRun) changeMany(ctx context.Context) (changes []*change, err error) {
	n := min(r.burst, r.Services)
	for i := range n {
		changes = append(changes, r.replace(i*r.Services/n))
	}
	if err := r.write(ctx, changes...); err != nil {
		return changes, err
	}
	return changes, r.await(ctx, slices.Clone(changes))
}

// changeSteadily makes changes at a steady pace, whatever the program does. A change whose endpoint is replaced again
// before it has shown is not counted.
func (r *speedRun) changeSteadily(ctx context.Context) (changes []*change, err error) {
	var open []*change
	began := time.Now()
	for len(changes) < r.churn {
		if due := began.Add(time.Duration(len(changes)) * r.churnEvery); time.Now().Before(due) {
			open = r.look(open)
			time.Sleep(time.Millisecond)
			continue
		}
		c := r.replace(len(changes) * 7919 % r.Services)
		open = slices.DeleteFunc(open, func(o *change) bool {
			return o.service == c.service && !slices.Contains(r.pods[o.service], o.pod)
		})
		changes = append(changes, c)
		if err := errors.Join(r.write(ctx, c), r.goesOn(ctx, began.Add(r.change))); err != nil {
			return changes, err
		}
		open = append(open, c)
	}
	return changes, r.await(ctx, open)
}

// steadyConnection sends on one connection all the time.
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

// longest returns the longest time without an answer since it was last called, and why there are none any more.
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

// machine describes the machine in words.
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
