package fakemodel

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestMiddlewareLosesNoAbility(t *testing.T) {
	for name, wrap := range map[string]func(sink.Sink) sink.Sink{
		"Forward": func(s sink.Sink) sink.Sink { return sink.NewForward(s) },
		"Tee":     func(s sink.Sink) sink.Sink { return sink.Tee(nil, s) },
		"Filter":  func(s sink.Sink) sink.Sink { return sink.Filter(s, sink.Keep{}) },
		"conntrack": func(s sink.Sink) sink.Sink {
			return conntrack.Wrap(t.Context(), s, conntrack.Options{Table: noFlows{}})
		},
		"healthcheck": func(s sink.Sink) sink.Sink { return health.NewServices(s, health.ServicesOptions{}) },
		"Faulty":      func(s sink.Sink) sink.Sink { return faulty(s, NewFaults(1, 0)) },
	} {
		assert.Empty(t, LostAbilities(t.Context(), wrap), name)
	}
}

// noFlows is an empty conntrack table.
type noFlows struct{}

func (noFlows) DeleteUDP(context.Context, model.Family, []conntrack.Selection, func(conntrack.Flow) bool) (int, error) {
	return 0, nil
}

// embedding embeds what it should not.
type embedding struct{ sink.Sink }

// silent hides errors, and services.
type silent struct{ *sink.Forward }

func (silent) SetService(*model.Service) {}

func (s silent) Sync(ctx context.Context) error {
	if s.Forward.Sync(ctx) != nil {
		return errors.New("something failed")
	}
	return nil
}

func TestLostAbilitiesAreFound(t *testing.T) {
	assert.Equal(t, []string{"SetNode", "ForceResync", "ResyncFailed", "Yield"},
		LostAbilities(t.Context(), func(s sink.Sink) sink.Sink { return embedding{s} }))
	assert.Equal(t, []string{"SetService", "errors"},
		LostAbilities(t.Context(), func(s sink.Sink) sink.Sink { return silent{sink.NewForward(s)} }))
	assert.Equal(t, []string{"SetNode", "SetService", "DeleteService", "SetEndpoint", "DeleteEndpoint", "ForceResync",
		"ResyncFailed",
		"Sync", "Yield", "errors"}, LostAbilities(t.Context(), func(sink.Sink) sink.Sink { return sink.Tee() }))
}
