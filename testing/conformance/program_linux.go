package conformance

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
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/machine"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/judge"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// program is a backend that is a separate program. It reads objects from an API server and does not report when it has
// applied them. As a [sink.Sink] it ignores the calls that describe the state, because the objects contain everything.
// Sync writes the objects, and waits until a packet shows that the program has applied them.
//
// As in a real cluster, the objects outlive the program. The first Sync after New starts the program, so changes made
// while it was stopped are there when it starts.
type program struct {
	host     judge.Host
	machine  *machine.Watch // nil in tests
	spent    *spending      // nil in tests
	try      func(network.Attempt, network.Timeouts) network.Seen
	families []model.Family
	always   []metav1.Object // Nodes and ServiceCIDRs
	// startTimeout limits the time until the program serves.
	startTimeout time.Duration
	// silence is how long to wait where no answer must come.
	silence time.Duration
	figures *figures

	wanted, written []metav1.Object
	probe           []metav1.Object // the last probe's Service and EndpointSlices
	running, served bool
	// grace is how long the program may take to come back to an API server that was away.
	grace time.Duration
	late  bool // since the case began, a result became right only later
}

// The objects contain everything, so the describing methods do nothing.
func (p *program) SetService(*model.Service)        {}
func (p *program) DeleteService(model.ServiceName)  {}
func (p *program) SetEndpoint(*model.Endpoint)      {}
func (p *program) DeleteEndpoint(model.EndpointKey) {}

// describe replaces all objects at the next Sync.
func (p *program) describe(objects []metav1.Object) { p.wanted = slices.Concat(p.always, objects) }

// Sync writes the objects, starts the program if it does not run, and waits until it serves them.
func (p *program) Sync(ctx context.Context) error {
	if err := p.write(ctx); err != nil {
		return err
	}
	if err := p.ask(ctx); err != nil {
		return err
	}
	if p.figures.slowestStart() > slowStart {
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

// write writes what has changed, and does not wait for the program.
func (p *program) write(ctx context.Context) error {
	changed, gone := changes(p.written, p.wanted)
	gone = append(gone, p.probe...)
	if err := p.host.Put(ctx, changed, gone); err != nil {
		return fmt.Errorf("write to the API server: %w", err)
	}
	p.written, p.probe = p.wanted, nil
	return nil
}

// slowStart is the threshold for a slow start, as in an emulated machine. Such a program takes seconds for a change,
// and may apply the probe early in it. A second probe, written after the first one answered, shows that the change is
// complete.
const slowStart = 3 * time.Second

// ask writes a probe, starts the program if it does not run, and waits until the probe answers.
func (p *program) ask(ctx context.Context) error {
	// The probe is written last. Watches keep the order of changes per kind of object, not across kinds: a new Service and
	// a new EndpointSlice follow all others of their kind.
	wave := p.figures.nextWave()
	began := time.Now()
	if err := p.putProbe(ctx, wave); err != nil {
		return err
	}
	limit, starts, written := max(p.figures.limit(), p.grace), !p.running, time.Now()
	if starts {
		began, limit = written, p.startTimeout
		if err := p.host.Start(ctx); err != nil {
			return &programError{fmt.Errorf("start the program: %w", err)}
		}
		p.running = true
	}
	for _, f := range p.families {
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
		p.figures.addStart(took)
	case p.grace == 0:
		p.figures.addWave(took)
	}
	return nil
}

// putProbe writes a wave's probe, without external IPs if an API server rejects those.
func (p *program) putProbe(ctx context.Context, wave int) error {
	external := !p.figures.withoutExternal.Load()
	probe := p.probeObjects(wave, external)
	p.probe = append(p.probe, probe...)
	err := p.host.Put(ctx, probe, nil)
	if refused := (*judge.RefusedError)(nil); external && errors.As(err, &refused) {
		if err = p.host.Put(ctx, p.probeObjects(wave, false), nil); err == nil {
			p.figures.withoutExternal.Store(true)
		}
	}
	if err != nil {
		return fmt.Errorf("write to the API server: %w", err)
	}
	return nil
}

// Close stops the program.
func (p *program) Close() error {
	if !p.running {
		return nil
	}
	p.running = false
	p.figures.addUsage(p.host.Usage())
	if p.spent == nil {
		return p.host.Stop(context.Background())
	}
	defer p.spent.stopped(p.host)
	p.spent.total() // what it has used since the last reading would be nobody's
	return p.host.Stop(context.Background())
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

func (p *program) probeIP(wave int, f model.Family) netip.Addr {
	return network.Nth(network.ClusterIPs(f), firstProbe+wave%probes)
}

func (p *program) externalProbeIP(wave int, f model.Family) netip.Addr {
	return network.Nth(externalIPs(f), firstExternalProbe+wave%externalProbes)
}

// probeObjects returns a new service, with or without external IPs, whose endpoint is local-2.
func (p *program) probeObjects(wave int, external bool) []metav1.Object {
	name := fmt.Sprintf("judge-%d", wave)
	service := kube.Service(name).Port("probe", 80)
	objects := []metav1.Object{nil}
	var ips []string
	for _, f := range p.families {
		ips = append(ips, p.probeIP(wave, f).String())
		if external {
			service.ExternalIP(p.externalProbeIP(wave, f).String())
		}
		objects = append(objects, kube.EndpointSlice(name).Name(strings.ToLower(fmt.Sprintf("%s-%v", name, f))).
			Port("probe", serverPort).Endpoint(network.PlaceNamed(localPod2).Addr(f).String()).OnNode(theNode).Build())
	}
	objects[0] = service.ClusterIP(ips...).Build()
	return objects
}

// await waits until a wave's probe answers in a family.
func (p *program) await(ctx context.Context, wave int, f model.Family, written time.Time, limit time.Duration) error {
	flow := p.probeFlow(p.probeIP(wave, f))
	reached, seen, err := p.awaitFlow(ctx, flow, f, written, limit)
	if err != nil || reached {
		return err
	}
	err = fmt.Errorf("a new Service and EndpointSlices of it were written, and after %v the cluster IP does not lead "+
		"to the endpoint.\nflow: %v\nseen: %v\nThe program has asked the API server for: %s",
		limit.Round(time.Second), flow, seen, p.host.Requests())
	if p.served {
		return fmt.Errorf("the program does not follow the cluster: %w", err)
	}
	return &programError{fmt.Errorf("the program never became ready: %w", err)}
}

// awaitExternal waits until the probe's external IPs answer too, because a program may apply all cluster IPs first. If
// they do not answer within the limit, later probes have none: other cases judge external IPs.
func (p *program) awaitExternal(ctx context.Context, wave int, limit time.Duration) (reached bool, err error) {
	began := time.Now()
	for _, f := range p.families {
		if p.figures.withoutExternal.Load() {
			return false, nil
		}
		reached, _, err = p.awaitFlow(ctx, p.probeFlow(p.externalProbeIP(wave, f)), f, began, limit)
		if err != nil {
			return false, err
		}
		if !reached {
			p.figures.withoutExternal.Store(true)
		}
	}
	return reached, nil
}

// awaitFlow tries a flow until it reaches the probe's endpoint, or until a limit has passed since a time.
func (p *program) awaitFlow(ctx context.Context, flow network.Attempt, f model.Family, since time.Time,
	limit time.Duration,
) (reached bool, seen network.Seen, err error) {
	// TCP resends a dropped packet only after a while, so the first tries are short.
	for try := 20 * time.Millisecond; ; try = min(try*5/4, time.Second) {
		seen = p.try(flow, network.Timeouts{Answer: try})
		if seen.Broken != nil {
			return false, seen, seen.Broken
		}
		if seen.Verdict == oracle.Deliver && seen.Endpoint == network.PlaceNamed(localPod2).ServerAt(f) {
			return true, seen, nil
		}
		select {
		case <-ctx.Done():
			return false, seen, ctx.Err()
		case <-p.host.Ended():
			return false, seen, &programError{p.host.Failure()}
		case <-time.After(5 * time.Millisecond):
		}
		if overdue(p.machine, since, limit) {
			return false, seen, nil
		}
	}
}

func (p *program) probeFlow(to netip.Addr) network.Attempt {
	return network.PlaceNamed(localPod1).FlowTo(netip.AddrPortFrom(to, 80), model.TCP,
		"a service of the judge itself")
}

// answersNothingElse checks that an unused cluster IP does not answer: otherwise the probes would prove nothing.
func (p *program) answersNothingElse() error {
	wrong := make([]error, len(p.families))
	network.Concurrently(len(wrong), func(i int) {
		flow := p.probeFlow(network.Nth(network.ClusterIPs(p.families[i]), firstProbe-1))
		seen := p.try(flow, network.Timeouts{Answer: p.silence})
		if seen.Verdict == oracle.Deliver || seen.Verdict == 0 && seen.Broken == nil {
			wrong[i] = &programError{fmt.Errorf("the program answers everything: no service has this address.\n"+
				"flow: %v\nseen: %v", flow, seen)}
		}
	})
	return errors.Join(wrong...)
}

// programError says that the whole program failed, so no case can be judged.
type programError struct{ error }

func (e *programError) Unwrap() error { return e.error }

func isProgramError(err error) bool {
	var e *programError
	return errors.As(err, &e)
}

// settled retries failed flows for a while if the backend is a program: rules that it applies after the probe are late,
// not wrong. A flow counts as right only after several successes.
func (b *testbed) settled(ctx context.Context, flows []expectation, wrong []error) []error {
	p := b.program
	if p == nil {
		return wrong
	}
	const copies = 8
	pause := 50 * time.Millisecond
	for began := time.Now(); !overdue(p.machine, began, p.figures.settle()); pause = pause * 3 / 2 {
		var open []int
		var again []expectation
		for i, err := range wrong {
			if err != nil {
				open = append(open, i)
				again = append(again, flows[i])
			}
		}
		if len(open) == 0 {
			return wrong
		}
		select {
		case <-ctx.Done():
			return wrong
		case <-p.host.Ended():
			wrong[open[0]] = p.host.Failure()
			return wrong
		case <-time.After(pause):
		}
		still := make([]error, len(open))
		for i, err := range b.judge(ctx, slices.Repeat(again, copies)) {
			if i %= len(open); still[i] == nil {
				still[i] = err
			}
		}
		for i, err := range still {
			wrong[open[i]] = err
			p.late = p.late || err == nil
		}
	}
	return wrong
}
