package sink

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Recorder is a Sink for tests. It keeps the calls, wave by wave, and the resulting state, and checks that they comply
// with the contract of [Sink]: see [Recorder.Violations]. It can fail on request. The zero value is ready to use.
//
// A test may query it from any goroutine while it is being fed. It keeps all waves until TakeWaves.
type Recorder struct {
	// fed is written, without the lock, by every call that feeds the recorder, so that the race detector reports calls
	// that come from several goroutines at a time. The lock would hide them.
	fed int

	mu       sync.Mutex
	broken   []string
	wave     Wave // the current one
	waves    []Wave
	waved    chan struct{} // closed when a wave ends; nil if nobody waits
	failures []error
	contract contract
}

// Wave has the calls up to a Sync, and what Sync returned.
type Wave struct {
	Calls []Call // Sync is not among them
	Err   error  // nil if Sync succeeded
}

// Lines returns the calls of the wave as text, see [Call.String], followed by "Sync", or "Sync: " and the error.
func (w Wave) Lines() []string {
	var lines []string
	for _, c := range w.Calls {
		lines = append(lines, c.String())
	}
	if w.Err != nil {
		return append(lines, "Sync: "+w.Err.Error())
	}
	return append(lines, "Sync")
}

// Op says which method was called.
type Op string

// The methods of [Sink] other than Sync, and those of [NodeSetter], [Resyncer] and [FailureResyncer].
const (
	OpSetNode        Op = "SetNode"
	OpSetService     Op = "SetService"
	OpDeleteService  Op = "DeleteService"
	OpSetEndpoint    Op = "SetEndpoint"
	OpDeleteEndpoint Op = "DeleteEndpoint"
	OpForceResync    Op = "ForceResync"
	OpResyncFailed   Op = "ResyncFailed"
)

// Call is a call of a Sink's method, other than Sync, with its argument.
type Call struct {
	Op       Op                // decides which of the other fields are set
	Node     *model.Node       // of SetNode
	Service  *model.Service    // of SetService
	Endpoint *model.Endpoint   // of SetEndpoint
	Name     model.ServiceName // of SetService and DeleteService
	Key      model.EndpointKey // of SetEndpoint and DeleteEndpoint
}

// String returns the call on one line: the method, and its argument in readable form without its type, for example
// "DeleteService ns/name" or "SetEndpoint ns/name:http/TCP -> 10.0.0.1:80 sets=Cluster".
func (c Call) String() string {
	text := string(c.Op)
	switch {
	case c.Node != nil:
		text += " " + strings.TrimPrefix(c.Node.String(), "node ")
	case c.Service != nil:
		text += " " + strings.TrimPrefix(oneLine(c.Service), "service ")
	case c.Endpoint != nil:
		text += " " + strings.TrimPrefix(c.Endpoint.String(), "endpoint ")
	case c.Op == OpDeleteService:
		text += " " + c.Name.String()
	case c.Op == OpDeleteEndpoint:
		text += " " + c.Key.String()
	case !c.resyncs():
		text += " nil"
	}
	return text
}

// resyncs reports whether the call asks for a resync.
func (c Call) resyncs() bool { return c.Op == OpForceResync || c.Op == OpResyncFailed }

func (r *Recorder) record(c Call) {
	r.fed++
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wave.Calls = append(r.wave.Calls, c)
	r.contract.call(c)
}

// SetNode implements [NodeSetter].
func (r *Recorder) SetNode(node *model.Node) { r.record(Call{Op: OpSetNode, Node: node}) }

// SetService implements [Sink].
func (r *Recorder) SetService(service *model.Service) {
	c := Call{Op: OpSetService, Service: service}
	if service != nil {
		c.Name = service.Name
	}
	r.record(c)
}

// DeleteService implements [Sink].
func (r *Recorder) DeleteService(name model.ServiceName) {
	r.record(Call{Op: OpDeleteService, Name: name})
}

// SetEndpoint implements [Sink].
func (r *Recorder) SetEndpoint(endpoint *model.Endpoint) {
	c := Call{Op: OpSetEndpoint, Endpoint: endpoint}
	if endpoint != nil {
		c.Key = endpoint.Key()
	}
	r.record(c)
}

// DeleteEndpoint implements [Sink].
func (r *Recorder) DeleteEndpoint(key model.EndpointKey) {
	r.record(Call{Op: OpDeleteEndpoint, Key: key})
}

// ForceResync implements [Resyncer].
func (r *Recorder) ForceResync() { r.record(Call{Op: OpForceResync}) }

// ResyncFailed implements [FailureResyncer].
func (r *Recorder) ResyncFailed() { r.record(Call{Op: OpResyncFailed}) }

// Sync implements [Sink]. It ends the wave and returns the error set by FailNext, or nil.
func (r *Recorder) Sync(context.Context) error {
	r.fed++
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failures) > 0 {
		r.wave.Err, r.failures = r.failures[0], r.failures[1:]
	}
	err := r.wave.Err
	r.contract.sync(r.wave)
	r.broken = append(r.broken, r.contract.brokenInvariants(r.wave)...)
	r.waves = append(r.waves, r.wave)
	r.wave = Wave{}
	if r.waved != nil {
		close(r.waved)
		r.waved = nil
	}
	return err
}

// FailNext makes the next calls of Sync return these errors, one each. A nil error lets a call succeed.
func (r *Recorder) FailNext(errs ...error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, errs...)
}

// TakeWaves returns the waves that ended since the last TakeWaves, and forgets them. It does not change the recorded
// state.
func (r *Recorder) TakeWaves() []Wave {
	r.mu.Lock()
	defer r.mu.Unlock()
	waves := r.waves
	r.waves = nil
	return waves
}

// TakeLines is TakeWaves as text: the lines of all the waves, see [Wave.Lines].
func (r *Recorder) TakeLines() []string {
	var lines []string
	for _, w := range r.TakeWaves() {
		lines = append(lines, w.Lines()...)
	}
	return lines
}

// NextWave waits until there is a wave that has not been taken, and takes the first of them. If ctx ends before that,
// it returns ctx's error.
func (r *Recorder) NextWave(ctx context.Context) (Wave, error) {
	for {
		wave, waved := r.takeWave()
		if waved == nil {
			return wave, nil
		}
		select {
		case <-waved:
		case <-ctx.Done():
			return Wave{}, fmt.Errorf("waiting for the next Sync: %w", context.Cause(ctx))
		}
	}
}

// takeWave takes a wave, or returns a channel that is closed when there is one.
func (r *Recorder) takeWave() (Wave, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waves) > 0 {
		wave := r.waves[0]
		r.waves = r.waves[1:]
		return wave, nil
	}
	if r.waved == nil {
		r.waved = make(chan struct{})
	}
	return Wave{}, r.waved
}

// Node returns the node that was last set, or nil.
func (r *Recorder) Node() *model.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.contract.node
}

// Services returns a copy of the services that are set.
func (r *Recorder) Services() map[model.ServiceName]*model.Service {
	r.mu.Lock()
	defer r.mu.Unlock()
	services := make(map[model.ServiceName]*model.Service, len(r.contract.services))
	maps.Copy(services, r.contract.services)
	return services
}

// Endpoints returns a copy of the endpoints that are set.
func (r *Recorder) Endpoints() map[model.EndpointKey]*model.Endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[model.EndpointKey]*model.Endpoint{}
	for _, endpoints := range r.contract.endpoints {
		maps.Copy(all, endpoints)
	}
	return all
}

// Violations returns the violations of the contract of [Sink] so far, one line each, in the order of the calls. It
// checks:
//
//   - Every endpoint that is set belongs to a port of a service that is set, after every single call.
//   - The first wave has a SetNode.
//   - The order of the calls in a wave.
//   - There is at most one call for a service or an endpoint in a wave, and it changes something.
//   - A Sync after a failed one has a change, a ResyncFailed or a ForceResync before it.
//   - ResyncFailed comes after a Sync that failed, if only for a service port.
//   - No value is nil.
//
// Sinks have to tolerate some of these, for example calls that change nothing, which middleware and tests may make. So
// the caller decides which violations matter.
func (r *Recorder) Violations() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.contract.violations...)
}

// BrokenInvariants returns the violations of the model's invariants at the end of a wave, see [model.Check], one line
// each. Package localstate never produces such a state. Programs that produce states themselves, or hide a part of one,
// can use it to find states that backends need not support.
func (r *Recorder) BrokenInvariants() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.broken...)
}

// oneLine returns the readable form of a service without its line ends.
func oneLine(s *model.Service) string {
	var parts []string
	for line := range strings.Lines(s.String()) {
		parts = append(parts, strings.TrimSpace(line))
	}
	return strings.Join(parts, "; ")
}
