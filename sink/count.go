package sink

import (
	"context"
	"sync/atomic"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// CountSink counts the calls to a sink. See [Count].
type CountSink struct {
	// Forward passes calls on to the next sink, including the optional ones.
	*Forward
	// Calls may be read at any time, from any goroutine.
	Calls CallCounts
}

// CallCounts says how often each method was called. Sync counts when it returns.
type CallCounts struct {
	// A call of an optional method counts even if the next sink does not have it.
	SetNode, SetService, DeleteService, SetEndpoint, DeleteEndpoint, ForceResync, ResyncFailed atomic.Uint64
	// Sync counts all calls of Sync, FailedSync those that returned an error.
	Sync, FailedSync atomic.Uint64
}

// Count returns a Sink that passes everything on and counts the calls. next may be nil.
func Count(next Sink) *CountSink { return &CountSink{Forward: NewForward(next)} }

// SetNode implements [NodeSetter].
func (c *CountSink) SetNode(node *model.Node) {
	c.Calls.SetNode.Add(1)
	c.Forward.SetNode(node)
}

// SetService implements [Sink].
func (c *CountSink) SetService(service *model.Service) {
	c.Calls.SetService.Add(1)
	c.Forward.SetService(service)
}

// DeleteService implements [Sink].
func (c *CountSink) DeleteService(name model.ServiceName) {
	c.Calls.DeleteService.Add(1)
	c.Forward.DeleteService(name)
}

// SetEndpoint implements [Sink].
func (c *CountSink) SetEndpoint(endpoint *model.Endpoint) {
	c.Calls.SetEndpoint.Add(1)
	c.Forward.SetEndpoint(endpoint)
}

// DeleteEndpoint implements [Sink].
func (c *CountSink) DeleteEndpoint(key model.EndpointKey) {
	c.Calls.DeleteEndpoint.Add(1)
	c.Forward.DeleteEndpoint(key)
}

// ForceResync implements [Resyncer].
func (c *CountSink) ForceResync() {
	c.Calls.ForceResync.Add(1)
	c.Forward.ForceResync()
}

// ResyncFailed implements [FailureResyncer].
func (c *CountSink) ResyncFailed() {
	c.Calls.ResyncFailed.Add(1)
	c.Forward.ResyncFailed()
}

// Sync implements [Sink].
func (c *CountSink) Sync(ctx context.Context) error {
	err := c.Forward.Sync(ctx)
	c.Calls.Sync.Add(1)
	if err != nil {
		c.Calls.FailedSync.Add(1)
	}
	return err
}
