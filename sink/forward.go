package sink

import (
	"context"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Forward passes on every call, the optional ones if the next sink has them: [NodeSetter], [Resyncer],
// [FailureResyncer] and [Yielder]. Middleware embeds a *Forward, made by [NewForward], and overrides the methods that
// it changes:
//
//	type upperCase struct{ *sink.Forward }
//
//	func (u upperCase) SetService(s *model.Service) { u.Forward.SetService(upper(s)) }
//
// Embedding the [Sink] itself instead would hide the next sink's optional methods: it would never receive the node, and
// never be asked to resync.
type Forward struct {
	next Sink
	err  error // of the last Sync
}

// NewForward returns a Forward to a sink. If next is nil, calls have no effect; if it is a Forward, it is returned.
func NewForward(next Sink) *Forward {
	if f, ok := next.(*Forward); ok && f != nil {
		return f
	}
	if next == nil {
		next = Tee()
	}
	return &Forward{next: next}
}

// SetNode implements [NodeSetter].
func (f *Forward) SetNode(node *model.Node) {
	if s, ok := f.next.(NodeSetter); ok {
		s.SetNode(node)
	}
}

// SetService implements [Sink].
func (f *Forward) SetService(service *model.Service) { f.next.SetService(service) }

// DeleteService implements [Sink].
func (f *Forward) DeleteService(name model.ServiceName) { f.next.DeleteService(name) }

// SetEndpoint implements [Sink].
func (f *Forward) SetEndpoint(endpoint *model.Endpoint) { f.next.SetEndpoint(endpoint) }

// DeleteEndpoint implements [Sink].
func (f *Forward) DeleteEndpoint(key model.EndpointKey) { f.next.DeleteEndpoint(key) }

// ForceResync implements [Resyncer].
func (f *Forward) ForceResync() {
	if r, ok := f.next.(Resyncer); ok {
		r.ForceResync()
	}
}

// ResyncFailed implements [FailureResyncer]. If the next sink is only a [Resyncer], ResyncFailed calls its ForceResync,
// unless only single service ports failed in its last Sync.
func (f *Forward) ResyncFailed() {
	if f.err == nil {
		return
	}
	if r, ok := f.next.(FailureResyncer); ok {
		r.ResyncFailed()
	} else if FailedFamilies(f.err) != 0 {
		f.ForceResync()
	}
}

// Sync implements [Sink].
func (f *Forward) Sync(ctx context.Context) error {
	f.err = f.next.Sync(ctx)
	return f.err
}

// Yield implements [Yielder].
func (f *Forward) Yield() time.Duration {
	if y, ok := f.next.(Yielder); ok {
		return y.Yield()
	}
	return 0
}
