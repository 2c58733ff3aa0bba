package sink

import (
	"context"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// FilterSink hides services and endpoints from a sink. See [Filter].
type FilterSink struct {
	state
	forward *Forward
	keep    Keep
	shown   map[model.ServiceName]*ServiceEntry // the state of the next sink
	// input is the state from which shown was computed.
	input *Snapshot

	mu       sync.Mutex // guards what follows
	askAll   bool
	askAbout map[model.ServiceName]struct{}
}

// Keep says what a [Filter] passes on. A nil function keeps everything.
type Keep struct {
	// Service reports whether a service is passed on, with its endpoints.
	Service func(*model.Service) bool
	// Endpoint reports whether an endpoint of a service that is passed on is passed on as well. The service itself is
	// not recomputed: a route whose endpoints are all hidden has an empty set, and the counts of health checks include
	// hidden endpoints.
	Endpoint func(*model.Service, *model.Endpoint) bool
}

// Filter returns a Sink that passes on what keep selects and hides everything else. The answer for a service holds
// until the service changes, and the answer for an endpoint until the endpoint or its service changes, or until
// [FilterSink.Ask] is called. When an answer changes, the next sink gets the service with all its endpoints, or the
// endpoint, set or deleted.
//
// At Sync the filter makes the calls of the wave to the next sink, in the order that [Sink] describes, and only those
// that change something, whatever the order and number of the calls that it received. Endpoints of a service that is
// not set are held back until it is.
//
// The filter has to remember all services and endpoints, since the answer for any of them may change. It keeps the
// values that it was given, and needs about 20 bytes more for each endpoint if services have ten of them.
func Filter(next Sink, keep Keep) *FilterSink {
	shown := map[model.ServiceName]*ServiceEntry{}
	return &FilterSink{state: newState(), forward: NewForward(next), keep: keep, shown: shown}
}

// Ask makes the next Sync call the functions in Keep again, for these services and their endpoints or, without
// arguments, for all. Call it, from any goroutine, when the policy behind these functions has changed, and then request
// a Sync through Options.SyncRequests of the root package.
func (f *FilterSink) Ask(services ...model.ServiceName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.askAll = f.askAll || len(services) == 0
	if f.askAbout == nil {
		f.askAbout = map[model.ServiceName]struct{}{}
	}
	for _, name := range services {
		f.askAbout[name] = struct{}{}
	}
}

// asked returns the arguments of the calls to Ask since asked was last called.
func (f *FilterSink) asked() (all bool, names map[model.ServiceName]struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all, names = f.askAll, f.askAbout
	f.askAll, f.askAbout = false, nil
	return all, names
}

// SetNode implements [NodeSetter].
func (f *FilterSink) SetNode(node *model.Node) { f.forward.SetNode(node) }

// ForceResync implements [Resyncer].
func (f *FilterSink) ForceResync() { f.forward.ForceResync() }

// Yield implements [Yielder].
func (f *FilterSink) Yield() time.Duration { return f.forward.Yield() }

// ResyncFailed implements [FailureResyncer].
func (f *FilterSink) ResyncFailed() { f.forward.ResyncFailed() }

// Sync implements [Sink].
func (f *FilterSink) Sync(ctx context.Context) error {
	f.apply(ctx)
	s := f.snapshot(resync{})
	all, names := f.asked()
	var changes []Change
	add := func(name model.ServiceName, old, new *ServiceEntry, again bool) {
		if c := f.filter(name, old, new, again); !c.Old.equal(c.New) {
			changes = append(changes, c)
		}
	}
	if all {
		for c := range s.ChangesSince(f.input) { // removed services
			if c.New == nil {
				add(c.Name, c.Old, nil, true)
			}
		}
		for entry := range s.Services() {
			add(entry.name, nil, entry, true)
		}
	} else {
		for c := range s.ChangesSince(f.input) {
			_, again := names[c.Name]
			delete(names, c.Name)
			add(c.Name, c.Old, c.New, again)
		}
		for name := range names {
			if entry := s.Service(name); entry != nil {
				add(name, entry, entry, true)
			}
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return a.Name.Compare(b.Name) })
	f.input = s
	makeCalls(f.forward, changes)
	return f.forward.Sync(ctx)
}

// filter returns what changes for the next sink when a service with its endpoints changes from old to new. again: call
// the functions in Keep for everything, not only for what differs.
func (f *FilterSink) filter(name model.ServiceName, old, new *ServiceEntry, again bool) Change {
	c := Change{Name: name, Old: f.shown[name]}
	again = again || old == nil || new == nil || !old.Service.Equal(new.Service)
	show := new != nil && (c.Old != nil && !again || again && (f.keep.Service == nil || f.keep.Service(new.Service)))
	if !show {
		delete(f.shown, name)
		return c
	}
	c.New = new
	if f.keep.Endpoint != nil {
		known := old
		if again || c.Old == nil {
			known = nil
		}
		c.New = &ServiceEntry{Service: new.Service, name: name, Endpoints: f.keepEndpoints(new, known, c.Old)}
	}
	f.shown[name] = c.New
	return c
}

// keepEndpoints returns the endpoints to show. An endpoint that known has unchanged stays shown or hidden.
func (f *FilterSink) keepEndpoints(entry, known, shown *ServiceEntry) []*model.Endpoint {
	var before, was []*model.Endpoint
	if known != nil {
		before, was = known.Endpoints, shown.Endpoints
	}
	// find advances in a sorted list and returns the endpoint with the same key as e, or nil.
	find := func(list *[]*model.Endpoint, e *model.Endpoint) *model.Endpoint {
		for len(*list) > 0 {
			first := (*list)[0]
			if order := compareEndpoints(first, e); order > 0 {
				return nil
			} else if order == 0 {
				return first
			}
			*list = (*list)[1:]
		}
		return nil
	}
	kept := make([]*model.Endpoint, 0, len(entry.Endpoints))
	for _, e := range entry.Endpoints {
		var keep bool
		if same := find(&before, e); same != nil && same.Equal(e) {
			keep = find(&was, e) != nil
		} else {
			keep = f.keep.Endpoint(entry.Service, e)
		}
		if keep {
			kept = append(kept, e)
		}
	}
	return slices.Clip(kept)
}

// makeCalls makes the calls for changes that are ordered by name, in the order of [Sink].
func makeCalls(next Sink, changes []Change) {
	for _, c := range changes {
		if c.New == nil {
			for _, e := range c.Old.Endpoints {
				next.DeleteEndpoint(e.Key())
			}
			next.DeleteService(c.Name)
		}
	}
	for _, c := range changes {
		if c.New == nil {
			continue
		}
		for old, new := range c.Endpoints() {
			if new == nil {
				next.DeleteEndpoint(old.Key())
			}
		}
		if c.ServiceChanged() {
			next.SetService(c.New.Service)
		}
		for _, new := range c.Endpoints() {
			if new != nil {
				next.SetEndpoint(new)
			}
		}
	}
}
