package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// program is a backend that is a program of its own. It learns from an API server what there is, and nobody says when
// it has applied that. As a [sink.Sink] it ignores what it is told: it passes on the objects that this comes from. Sync
// writes them, and waits until a packet shows that the program has seen them.
//
// The objects outlive the program, as those of a real cluster: it is started by the first Sync after New, so what has
// changed while it did not run is there when it starts.
type program struct {
	host     Host
	try      func(network.Attempt, network.Patience) network.Seen
	families []model.Family
	always   []metav1.Object // the nodes and the service CIDRs
	// startTimeout is how long the program may take until it serves.
	startTimeout time.Duration
	// silence is how long to wait where no answer must come.
	silence time.Duration
	figures *figures

	wanted, written []metav1.Object
	probe           []metav1.Object // the Services and EndpointSlices of the last wave
	running, served bool
	late            bool // something was right only after a while, since the case began
}

// The sink's methods that describe: the objects say it all.
func (p *program) SetService(*model.Service)        {}
func (p *program) DeleteService(model.ServiceName)  {}
func (p *program) SetEndpoint(*model.Endpoint)      {}
func (p *program) DeleteEndpoint(model.EndpointKey) {}

// describe replaces all objects, for the next Sync.
func (p *program) describe(objects []metav1.Object) { p.wanted = slices.Concat(p.always, objects) }

// Sync writes the objects, starts the program if it does not run, and waits until it serves them.
func (p *program) Sync(ctx context.Context) error {
	changed, gone := changes(p.written, p.wanted)
	gone = append(gone, p.probe...)
	if err := p.host.Put(ctx, changed, gone); err != nil {
		return fmt.Errorf("write to the API server: %w", err)
	}
	p.written, p.probe = p.wanted, nil
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

// slowStart is the time from which on a start is slow, as that of a program in an emulated machine. Such a program takes
// seconds for a change, and may show the probe at the beginning of it: the answer to a second one, written after that,
// shows that it came to the end.
const slowStart = 3 * time.Second

// ask writes a probe, starts the program if it does not run, and waits until the probe answers.
func (p *program) ask(ctx context.Context) error {
	// The probe is written last. Watches keep the order of changes for each kind of object, not between them: one
	// new Service and one new EndpointSlice are behind all others.
	wave := p.figures.nextWave()
	began := time.Now()
	if err := p.putProbe(ctx, wave); err != nil {
		return err
	}
	limit, starts, written := p.figures.limit(), !p.running, time.Now()
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
	reached, err := p.awaitExternal(ctx, wave, time.Now().Add(min(max(10*time.Second, took), time.Minute)))
	if err != nil {
		return err
	}
	if reached {
		took = time.Since(began)
	}
	if starts {
		p.figures.addStart(took)
	} else {
		p.figures.addWave(took)
	}
	return nil
}

// putProbe writes the probe of a wave. It has no external IPs if an API server refuses those.
func (p *program) putProbe(ctx context.Context, wave int) error {
	external := !p.figures.withoutExternal.Load()
	probe := p.probeObjects(wave, external)
	p.probe = append(p.probe, probe...)
	err := p.host.Put(ctx, probe, nil)
	if refused := (*RefusedError)(nil); external && errors.As(err, &refused) {
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
	return p.host.Stop(context.Background())
}

// changes returns the objects of a list that another one does not have like this, and those that it has not at all.
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

// The cluster IPs of the probes of successive waves, apart from those of cases, and their external IPs. The cluster IP
// before has no service.
const (
	firstProbe, probes                 = 1000, 500
	firstExternalProbe, externalProbes = 100, 100
)

func (p *program) probeIP(wave int, f model.Family) netip.Addr {
	return network.Nth(clusterIPs(f), firstProbe+wave%probes)
}

func (p *program) externalProbeIP(wave int, f model.Family) netip.Addr {
	return network.Nth(externalIPs(f), firstExternalProbe+wave%externalProbes)
}

// probeObjects returns a service that nobody has seen before, with or without external IPs. Its endpoint is local-2.
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

// await waits until the probe of a wave answers in a family.
func (p *program) await(ctx context.Context, wave int, f model.Family, written time.Time, limit time.Duration) error {
	flow := p.probeFlow(p.probeIP(wave, f))
	reached, seen, err := p.awaitFlow(ctx, flow, f, written.Add(limit))
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

// awaitExternal waits until the external IPs of the probe answer, too, because a program may apply the cluster IPs of
// all services before anything else. Once they do not, by the deadline, no probe of the run has any: what a program
// makes of external IPs is for the cases to say.
func (p *program) awaitExternal(ctx context.Context, wave int, deadline time.Time) (reached bool, err error) {
	for _, f := range p.families {
		if p.figures.withoutExternal.Load() {
			return false, nil
		}
		reached, _, err = p.awaitFlow(ctx, p.probeFlow(p.externalProbeIP(wave, f)), f, deadline)
		if err != nil {
			return false, err
		}
		if !reached {
			p.figures.withoutExternal.Store(true)
		}
	}
	return reached, nil
}

// awaitFlow tries a flow until it reaches the endpoint of the probe, or a deadline is over.
func (p *program) awaitFlow(ctx context.Context, flow network.Attempt, f model.Family, deadline time.Time) (
	reached bool, seen network.Seen, err error,
) {
	// A packet that is dropped is not sent again for a while: tries are short at first.
	for try := 20 * time.Millisecond; ; try = min(try*5/4, time.Second) {
		seen = p.try(flow, network.Patience{Answer: try})
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
		if time.Now().After(deadline) {
			return false, seen, nil
		}
	}
}

func (p *program) probeFlow(to netip.Addr) network.Attempt {
	return network.PlaceNamed(localPod1).FlowTo(netip.AddrPortFrom(to, 80), model.TCP,
		"a service of the judge itself")
}

// answersNothingElse checks that a cluster IP that no service has is not answered: otherwise the probes prove nothing.
func (p *program) answersNothingElse() error {
	wrong := make([]error, len(p.families))
	network.Concurrently(len(wrong), func(i int) {
		flow := p.probeFlow(network.Nth(clusterIPs(p.families[i]), firstProbe-1))
		seen := p.try(flow, network.Patience{Answer: p.silence})
		if seen.Verdict == oracle.Deliver || seen.Verdict == 0 && seen.Broken == nil {
			wrong[i] = &programError{fmt.Errorf("the program answers everything: no service has this address.\n"+
				"flow: %v\nseen: %v", flow, seen)}
		}
	})
	return errors.Join(wrong...)
}

// programError is about the program as a whole: no case can be judged.
type programError struct{ error }

func (e *programError) Unwrap() error { return e.error }

func isProgramError(err error) bool {
	var e *programError
	return errors.As(err, &e)
}

// settled tries again what is wrong, for a while, if the backend is a program: what it applies later than what the
// probe shows is slow, not wrong. What is right then has to be right several times.
func (s *session) settled(ctx context.Context, flows []expectation, wrong []error) []error {
	p := s.program
	if p == nil {
		return wrong
	}
	const copies = 8
	pause := 50 * time.Millisecond
	for deadline := time.Now().Add(p.figures.settle()); time.Now().Before(deadline); pause = pause * 3 / 2 {
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
		for i, err := range s.judge(ctx, slices.Repeat(again, copies)) {
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

// figures are what all programs of a run have shown of their speed.
type figures struct {
	mu            sync.Mutex
	wave          int
	starts, waves []time.Duration
	processor     time.Duration
	memory        int64
	// withoutExternal: the external IPs of probes do not answer.
	withoutExternal atomic.Bool
}

// nextWave returns a number that no wave had before.
func (f *figures) nextWave() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wave++
	return f.wave
}

func (f *figures) addStart(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.starts = append(f.starts, took)
}

func (f *figures) addWave(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waves = append(f.waves, took)
}

func (f *figures) addUsage(processor time.Duration, memory int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.processor += processor
	f.memory = max(f.memory, memory)
}

// slowest returns the longest time that a change has taken so far.
func (f *figures) slowest() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waves) == 0 {
		return time.Second
	}
	return slices.Max(f.waves)
}

// slowestStart returns the longest time that a start has taken so far, 0 if none has.
func (f *figures) slowestStart() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.starts) == 0 {
		return 0
	}
	return slices.Max(f.starts)
}

// limit is how long a change may take: much longer than any has taken before. What takes long to start, such as a
// program in an emulated machine, may take a few times as long for a change: it may begin in the middle of another one.
func (f *figures) limit() time.Duration {
	return max(10*time.Second, min(10*f.slowest(), time.Minute), min(5*f.slowestStart(), 3*time.Minute))
}

// settle is how long what is wrong is tried again. Two probes have shown that a slow program came to the end of a change.
func (f *figures) settle() time.Duration {
	longest := time.Minute
	if f.slowestStart() > slowStart {
		longest = 20 * time.Second
	}
	return max(3*time.Second, min(3*f.slowest(), longest))
}
