package sink

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// forward passes every call on, the optional ones if the next sink has them. Middleware embeds it and overrides what it
// is about.
type forward struct{ next Sink }

// forwardTo returns a forward to a sink, or to nowhere if it is nil.
func forwardTo(next Sink) forward {
	if next == nil {
		next = Tee()
	}
	return forward{next}
}

// SetNode implements [NodeSetter].
func (f forward) SetNode(node *model.Node) {
	if s, ok := f.next.(NodeSetter); ok {
		s.SetNode(node)
	}
}

// SetService implements [Sink].
func (f forward) SetService(service *model.Service) { f.next.SetService(service) }

// DeleteService implements [Sink].
func (f forward) DeleteService(name model.ServiceName) { f.next.DeleteService(name) }

// SetEndpoint implements [Sink].
func (f forward) SetEndpoint(endpoint *model.Endpoint) { f.next.SetEndpoint(endpoint) }

// DeleteEndpoint implements [Sink].
func (f forward) DeleteEndpoint(key model.EndpointKey) { f.next.DeleteEndpoint(key) }

// ForceResync implements [Resyncer].
func (f forward) ForceResync() {
	if r, ok := f.next.(Resyncer); ok {
		r.ForceResync()
	}
}

// Sync implements [Sink].
func (f forward) Sync(ctx context.Context) error { return f.next.Sync(ctx) }
