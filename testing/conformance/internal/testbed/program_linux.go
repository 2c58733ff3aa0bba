package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/machine"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// Program is a backend that is a separate program. It reads objects from an API server and does not report when it has
// applied them. As a [sink.Sink] it ignores the calls that describe the state, because the objects contain everything.
// Sync writes the objects, and waits until a packet shows that the program has applied them.
//
// As in a real cluster, the objects outlive the program. The first Sync after New starts the program, so changes made
// while it was stopped are there when it starts.
type Program struct {
	Host     program.Host
	Machine  *machine.Watch // nil in tests
	Spent    *Spending      // nil in tests
	Try      func(network.Attempt, network.Timeouts) network.Seen
	Families []model.Family
	Always   []metav1.Object // Nodes and ServiceCIDRs
	// StartTimeout limits the time until the program serves.
	StartTimeout time.Duration
	// Silence is how long to wait where no answer must come.
	Silence time.Duration
	Figures *Figures

	Wanted, written []metav1.Object
	probe           []metav1.Object // the last probe's Service and EndpointSlices
	running, served bool
	// Grace is how long the program may take if it has to reconnect to an API server or to catch up with many changes.
	Grace time.Duration
	Late  bool // since the case began, a result was right only on a later try
}

// SetService does nothing, like the other methods that describe a state: the objects contain everything.
func (p *Program) SetService(*model.Service) {}

// DeleteService does nothing.
func (p *Program) DeleteService(model.ServiceName) {}

// SetEndpoint does nothing.
func (p *Program) SetEndpoint(*model.Endpoint) {}

// DeleteEndpoint does nothing.
func (p *Program) DeleteEndpoint(model.EndpointKey) {}

// Describe replaces all objects at the next Sync.
func (p *Program) Describe(objects []metav1.Object) { p.Wanted = slices.Concat(p.Always, objects) }

// Sync writes the objects, starts the program if it does not run, and waits until it serves them.
func (p *Program) Sync(ctx context.Context) error {
	if err := p.Write(ctx); err != nil {
		return err
	}
	if err := p.ask(ctx); err != nil {
		return err
	}
	if p.Figures.slowestStart() > SlowStart {
		if err := p.ask(ctx); err != nil {
			return err
		}
	}
	if !p.served {
		p.served = true
		return p.answersNothingElse()
	}
	return nil
}

// Write writes what has changed, and does not wait for the program.
func (p *Program) Write(ctx context.Context) error {
	changed, gone := changes(p.written, p.Wanted)
	gone = append(gone, p.probe...)
	if err := p.Host.Put(ctx, changed, gone); err != nil {
		return fmt.Errorf("write to the API server: %w", err)
	}
	p.written, p.probe = p.Wanted, nil
	return nil
}

// SlowStart is the threshold for a slow start, as in an emulated machine. Such a program takes seconds for a change,
// and may apply the probe early in it. A second probe, written after the first one answered, shows that the change is
// complete.
const SlowStart = 3 * time.Second

// ask writes a probe, starts the program if it does not run, and waits until the probe answers.
func (p *Program) ask(ctx context.Context) error {
	// The probe is written last. Watches keep the order of changes per kind of object, not across kinds: a new Service
	// and a new EndpointSlice follow all others of their kind.
	wave := p.Figures.nextWave()
	began := time.Now()
	if err := p.putProbe(ctx, wave); err != nil {
		return err
	}
	limit, starts, written := max(p.Figures.limit(), p.Grace), !p.running, time.Now()
	if starts {
		began, limit = written, p.StartTimeout
		if err := p.Host.Start(ctx); err != nil {
			return &ProgramError{Err: fmt.Errorf("start the program: %w", err)}
		}
		p.running = true
		if p.Spent != nil {
			p.Spent.started(p.Host)
		}
	}
	for _, f := range p.Families {
		if err := p.await(ctx, wave, f, written, limit); err != nil {
			return err
		}
	}
	took := time.Since(began)
	reached, err := p.awaitExternal(ctx, wave, min(max(10*time.Second, took), time.Minute))
	if err != nil {
		return err
	}
	if reached {
		took = time.Since(began)
	}
	switch {
	case starts:
		p.Figures.addStart(took)
	case p.Grace == 0:
		p.Figures.addWave(took)
	}
	return nil
}

// putProbe writes a wave's probe, without external IPs if an API server rejects those.
func (p *Program) putProbe(ctx context.Context, wave int) error {
	external := !p.Figures.WithoutExternal.Load()
	probe := p.probeObjects(wave, external)
	p.probe = append(p.probe, probe...)
	err := p.Host.Put(ctx, probe, nil)
	if refused := (*program.RefusedError)(nil); external && errors.As(err, &refused) {
		if err = p.Host.Put(ctx, p.probeObjects(wave, false), nil); err == nil {
			p.Figures.WithoutExternal.Store(true)
		}
	}
	if err != nil {
		return fmt.Errorf("write to the API server: %w", err)
	}
	return nil
}

// Close stops the program.
func (p *Program) Close() error {
	if !p.running {
		return nil
	}
	p.running = false
	p.Figures.addUsage(p.Host.Usage())
	if p.Spent != nil {
		p.Spent.Total() // a host may not know any more what a program used that has ended
	}
	return p.Host.Stop(context.Background())
}

// changes returns the objects that are new or changed in now, and those that only before has.
func changes(before, now []metav1.Object) (changed, gone []metav1.Object) {
	key := func(o metav1.Object) string { return fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName()) }
	old := map[string]metav1.Object{}
	for _, o := range before {
		old[key(o)] = o
	}
	for _, o := range now {
		if !reflect.DeepEqual(old[key(o)], o) {
			changed = append(changed, o)
		}
		delete(old, key(o))
	}
	for _, o := range before {
		if old[key(o)] != nil {
			gone = append(gone, o)
		}
	}
	return changed, gone
}

// The cluster IPs of successive waves' probes, outside the range of the cases, and their external IPs. The cluster IP
// before the first has no service.
const (
	firstProbe, probes                 = 1000, 500
	firstExternalProbe, externalProbes = 100, 100
)

func (p *Program) probeIP(wave int, f model.Family) netip.Addr {
	return network.Nth(network.ClusterIPs(f), firstProbe+wave%probes)
}

func (p *Program) externalProbeIP(wave int, f model.Family) netip.Addr {
	return network.Nth(cluster.ExternalIPs(f), firstExternalProbe+wave%externalProbes)
}

// probeObjects returns a new service, with or without external IPs, whose endpoint is local-2.
func (p *Program) probeObjects(wave int, external bool) []metav1.Object {
	name := fmt.Sprintf("judge-%d", wave)
	service := kube.Service(name).Port("probe", 80)
	objects := []metav1.Object{nil}
	var ips []string
	for _, f := range p.Families {
		ips = append(ips, p.probeIP(wave, f).String())
		if external {
			service.ExternalIP(p.externalProbeIP(wave, f).String())
		}
		objects = append(objects, kube.EndpointSlice(name).Name(strings.ToLower(fmt.Sprintf("%s-%v", name, f))).
			Port("probe", network.ServerPort).Endpoint(network.HostNamed(network.LocalPod2).Addr(f).String()).
			OnNode(network.TheNode).Build())
	}
	objects[0] = service.ClusterIP(ips...).Build()
	return objects
}

// await waits until a wave's probe answers in a family.
func (p *Program) await(ctx context.Context, wave int, f model.Family, written time.Time, limit time.Duration) error {
	flow := p.probeFlow(p.probeIP(wave, f))
	reached, seen, err := p.awaitFlow(ctx, flow, f, written, limit)
	if err != nil || reached {
		return err
	}
	err = fmt.Errorf("a new Service and EndpointSlices of it were written, and after %v the cluster IP does not lead "+
		"to the endpoint.\nflow: %v\nseen: %v\nThe program has asked the API server for: %s",
		limit.Round(time.Second), flow, seen, p.Host.Requests())
	if p.served {
		return fmt.Errorf("the program does not follow the cluster: %w", err)
	}
	return &ProgramError{Err: fmt.Errorf("the program never became ready: %w", err)}
}

// awaitExternal waits until the probe's external IPs answer too, because a program may apply all cluster IPs first. If
// they do not answer within the limit, later probes have none: other cases judge external IPs.
func (p *Program) awaitExternal(ctx context.Context, wave int, limit time.Duration) (reached bool, err error) {
	began := time.Now()
	for _, f := range p.Families {
		if p.Figures.WithoutExternal.Load() {
			return false, nil
		}
		reached, _, err = p.awaitFlow(ctx, p.probeFlow(p.externalProbeIP(wave, f)), f, began, limit)
		if err != nil {
			return false, err
		}
		if !reached {
			p.Figures.WithoutExternal.Store(true)
		}
	}
	return reached, nil
}

// awaitFlow tries a flow until it reaches the probe's endpoint, or until a limit has passed since a time.
func (p *Program) awaitFlow(ctx context.Context, flow network.Attempt, f model.Family, since time.Time,
	limit time.Duration,
) (reached bool, seen network.Seen, err error) {
	// TCP resends a dropped packet only after a while, so the first tries are short.
	for try := 20 * time.Millisecond; ; try = min(try*5/4, time.Second) {
		seen = p.Try(flow, network.Timeouts{Answer: try})
		if seen.Broken != nil {
			return false, seen, seen.Broken
		}
		if seen.Verdict == oracle.Deliver && seen.Endpoint == network.HostNamed(network.LocalPod2).ServerAt(f) {
			return true, seen, nil
		}
		select {
		case <-ctx.Done():
			return false, seen, ctx.Err()
		case <-p.Host.Ended():
			return false, seen, &ProgramError{Err: p.Host.Failure()}
		case <-time.After(5 * time.Millisecond):
		}
		if Overdue(p.Machine, since, limit) {
			return false, seen, nil
		}
	}
}

func (p *Program) probeFlow(to netip.Addr) network.Attempt {
	return network.HostNamed(network.LocalPod1).FlowTo(netip.AddrPortFrom(to, 80), model.TCP,
		"a service of the judge itself")
}

// answersNothingElse checks that an unused cluster IP does not answer: otherwise the probes would prove nothing.
func (p *Program) answersNothingElse() error {
	wrong := make([]error, len(p.Families))
	network.Concurrently(len(wrong), func(i int) {
		flow := p.probeFlow(network.Nth(network.ClusterIPs(p.Families[i]), firstProbe-1))
		seen := p.Try(flow, network.Timeouts{Answer: p.Silence})
		if seen.Verdict == oracle.Deliver || seen.Verdict == 0 && seen.Broken == nil {
			wrong[i] = &ProgramError{Err: fmt.Errorf("the program answers everything: no service has this address.\n"+
				"flow: %v\nseen: %v", flow, seen)}
		}
	})
	return errors.Join(wrong...)
}

// ProgramError says that the whole program failed, so no case can be judged.
type ProgramError struct{ Err error }

func (e *ProgramError) Error() string { return e.Err.Error() }
func (e *ProgramError) Unwrap() error { return e.Err }

// SetupError says that the program's network or its API server could not be prepared, which is not the program's fault.
type SetupError struct{ Err error }

func (e *SetupError) Error() string { return e.Err.Error() }
func (e *SetupError) Unwrap() error { return e.Err }

// mostExtension is how many times as long a wait may become on a busy machine.
const mostExtension = 4

// Overdue reports whether a wait has lasted longer than its limit. Time in which the machine was too busy does not
// count, up to a multiple of the limit.
func Overdue(w *machine.Watch, since time.Time, limit time.Duration) bool {
	passed := time.Since(since)
	return passed > limit && (w == nil || passed-min(w.BusyTime(since), mostExtension*limit) > limit)
}
