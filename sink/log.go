package sink

import (
	"context"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// LogSink logs the calls to a sink. See [Log].
type LogSink struct {
	// Forward passes calls on to the next sink, including the optional ones.
	*Forward
	logger klog.Logger
}

// Log returns a Sink that logs every call on one line, at the logger's level, and passes it on: a Set or Delete call
// before, Sync afterwards, with how long it took and the error, if any. next may be nil to log only.
//
//	s := sink.Log(backend, klog.FromContext(ctx).V(4))
func Log(next Sink, logger klog.Logger) *LogSink { return &LogSink{NewForward(next), logger} }

// SetNode implements [NodeSetter].
func (l *LogSink) SetNode(node *model.Node) {
	if l.logger.Enabled() {
		l.logger.Info("SetNode", "node", textOf(node, (*model.Node).String))
	}
	l.Forward.SetNode(node)
}

// SetService implements [Sink].
func (l *LogSink) SetService(service *model.Service) {
	if l.logger.Enabled() {
		l.logger.Info("SetService", "service", textOf(service, oneLine))
	}
	l.Forward.SetService(service)
}

// DeleteService implements [Sink].
func (l *LogSink) DeleteService(name model.ServiceName) {
	l.logger.Info("DeleteService", "service", name)
	l.Forward.DeleteService(name)
}

// SetEndpoint implements [Sink].
func (l *LogSink) SetEndpoint(endpoint *model.Endpoint) {
	if l.logger.Enabled() {
		l.logger.Info("SetEndpoint", "endpoint", textOf(endpoint, (*model.Endpoint).String))
	}
	l.Forward.SetEndpoint(endpoint)
}

// DeleteEndpoint implements [Sink].
func (l *LogSink) DeleteEndpoint(key model.EndpointKey) {
	l.logger.Info("DeleteEndpoint", "endpoint", key)
	l.Forward.DeleteEndpoint(key)
}

// ForceResync implements [Resyncer].
func (l *LogSink) ForceResync() {
	l.logger.Info("ForceResync")
	l.Forward.ForceResync()
}

// ResyncFailed implements [FailureResyncer].
func (l *LogSink) ResyncFailed() {
	l.logger.Info("ResyncFailed")
	l.Forward.ResyncFailed()
}

// Sync implements [Sink].
func (l *LogSink) Sync(ctx context.Context) error {
	start := time.Now()
	err := l.Forward.Sync(ctx)
	if err != nil {
		l.logger.Info("Sync", "duration", time.Since(start), "err", err)
	} else {
		l.logger.Info("Sync", "duration", time.Since(start))
	}
	return err
}

// textOf returns the readable form of a value, or "none".
func textOf[T any](value *T, text func(*T) string) string {
	if value == nil {
		return "none"
	}
	return text(value)
}

// oneLine returns the readable form of a service without its line ends.
func oneLine(s *model.Service) string {
	var parts []string
	for line := range strings.Lines(s.String()) {
		parts = append(parts, strings.TrimSpace(line))
	}
	return strings.Join(parts, "; ")
}
