package sink_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// No nil value, sink or function makes the package panic.
func TestNilIsNothing(t *testing.T) {
	all := func(*model.Service) bool { return true }
	for name, wrap := range map[string]func(sink.Sink) sink.Sink{
		"FullState": func(sink.Sink) sink.Sink {
			return sink.NewFullState(func(context.Context, *sink.Snapshot) error { return nil })
		},
		"FullState without a callback": func(sink.Sink) sink.Sink { return sink.NewFullState(nil) },
		"Tee":                          func(s sink.Sink) sink.Sink { return sink.Tee(s, nil) },
		"Filter":                       func(s sink.Sink) sink.Sink { return sink.Filter(s, sink.Keep{Service: all}) },
		"Filter without a function":    func(s sink.Sink) sink.Sink { return sink.Filter(s, sink.Keep{}) },
		"Forward":                      func(s sink.Sink) sink.Sink { return sink.NewForward(s) },
		"RememberServices":             func(s sink.Sink) sink.Sink { return rememberAll(s) },
		"Recorder":                     func(sink.Sink) sink.Sink { return &sink.Recorder{} },
	} {
		t.Run(name, func(t *testing.T) {
			for _, next := range []sink.Sink{nil, &sink.Recorder{}} {
				s := wrap(next)
				for range 2 {
					s.SetService(nil)
					s.SetEndpoint(nil)
					s.DeleteService(model.ServiceName{})
					s.DeleteEndpoint(model.EndpointKey{})
					s.(sink.NodeSetter).SetNode(nil)
					require.NoError(t, s.Sync(t.Context()))
				}
				s.SetService(service("a", 1))
				s.SetEndpoint(httpEndpoint("a", "10.0.0.1:80"))
				s.(sink.Resyncer).ForceResync()
				s.(sink.FailureResyncer).ResyncFailed()
				require.NoError(t, s.Sync(t.Context()))
				if r, ok := next.(*sink.Recorder); ok && name != "FullState" &&
					name != "FullState without a callback" && name != "Recorder" {
					assert.Len(t, r.Services(), 1)
					assert.Len(t, r.Endpoints(), 1)
				}
			}
		})
	}
}
