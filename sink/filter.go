package sink

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// FilterSink hides services from a sink. See [Filter].
type FilterSink struct {
	state
	forward *Forward
	keep    func(*model.Service) bool
	shown   map[model.ServiceName]struct{} // services that the next sink has
	// described is the state of which the next sink has been told what is shown.
	described *Snapshot
}

// Filter returns a Sink that passes on the services that are to be kept, with their endpoints, and hides all others. What
// keep answers for a service holds until the service itself changes: it is asked again then, and only then. When the
// answer becomes another, the service comes or goes for the next sink, with all its endpoints.
//
// The calls of a wave are made to the next sink at Sync, in the order that [Sink] describes, and only those that change
// something: whatever the order and the number of the calls before. Endpoints of a service that is not set are held back
// until it is.
//
// The filter has to remember all services and endpoints, since any of them may have to come or go. It keeps the values
// that it was given alive and needs, besides them, about 20 bytes for each endpoint of services with ten of them.
func Filter(next Sink, keep func(*model.Service) bool) *FilterSink {
	if keep == nil {
		keep = func(*model.Service) bool { return true }
	}
	return &FilterSink{state: newState(), forward: NewForward(next), keep: keep, shown: map[model.ServiceName]struct{}{}}
}

// SetNode implements [NodeSetter].
func (f *FilterSink) SetNode(node *model.Node) { f.forward.SetNode(node) }

// ForceResync implements [Resyncer].
func (f *FilterSink) ForceResync() { f.forward.ForceResync() }

// ResyncFailed implements [FailureResyncer].
func (f *FilterSink) ResyncFailed() { f.forward.ResyncFailed() }

// Sync implements [Sink].
func (f *FilterSink) Sync(ctx context.Context) error {
	f.apply(ctx)
	s := f.snapshot(resync{})
	var changes []Change
	for c := range s.ChangesSince(f.described) {
		if c = f.filter(c); c.Old != nil || c.New != nil {
			changes = append(changes, c)
		}
	}
	f.described = s
	describe(f.forward, changes)
	return f.forward.Sync(ctx)
}

// filter returns a change as the next sink is to see it: a service that is hidden is not there.
func (f *FilterSink) filter(c Change) Change {
	_, wasShown := f.shown[c.Name]
	show := wasShown
	if c.ServiceChanged() {
		show = c.New != nil && f.keep(c.New.Service)
	}
	if !wasShown {
		c.Old = nil
	}
	if show {
		f.shown[c.Name] = struct{}{}
	} else {
		c.New = nil
		delete(f.shown, c.Name)
	}
	return c
}

// describe makes the calls for changes that are ordered by name, in the order that Sink describes.
func describe(next Sink, changes []Change) {
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
