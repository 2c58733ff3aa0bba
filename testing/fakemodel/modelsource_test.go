package fakemodel

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// lines flushes a model to a recorder as one wave, and returns the calls in short form.
func lines(t *testing.T, m *modelSource, r *sink.Recorder) []string {
	t.Helper()
	changed, err := m.flush(r)
	require.NoError(t, err)
	require.NoError(t, r.Sync(context.Background()))
	var short []string
	for _, wave := range r.TakeWaves() {
		for _, call := range wave.Calls {
			text := string(call.Op)
			switch call.Op {
			case sink.OpSetService, sink.OpDeleteService:
				text += " " + call.Name.String()
			case sink.OpSetEndpoint, sink.OpDeleteEndpoint:
				text += " " + call.Key.String()
			}
			short = append(short, text)
		}
	}
	require.Equal(t, changed, len(short) > 0)
	require.Empty(t, r.Violations())
	return short
}

func TestModelHandsOverWhatChangedInTheSinksOrder(t *testing.T) {
	a, b := Service("a").Build(), Service("b").Build()
	a1, a2 := Endpoint("a/TCP", "10.244.1.1:80").Build(), Endpoint("a/TCP", "10.244.1.2:80").Build()
	b1 := Endpoint("b/TCP", "10.244.1.1:80").Build()
	m, r := newModelSource(), &sink.Recorder{}

	for _, ep := range []*model.Endpoint{a2, b1, a1} {
		require.NoError(t, m.set(ep)) // before their services
	}
	require.NoError(t, m.set(b))
	require.NoError(t, m.set(a))
	require.NoError(t, m.set(Node("n1").Build()))
	assert.Equal(t, []string{
		"SetNode",
		"SetService default/a", "SetEndpoint default/a/TCP -> 10.244.1.1:80",
		"SetEndpoint default/a/TCP -> 10.244.1.2:80",
		"SetService default/b", "SetEndpoint default/b/TCP -> 10.244.1.1:80",
	}, lines(t, m, r))

	require.NoError(t, m.set(Node("n1").Build()))
	require.NoError(t, m.set(Service("a").Build()))
	require.NoError(t, m.set(Endpoint("a/TCP", "10.244.1.1:80").Build()))
	require.NoError(t, m.delete(model.ServiceName{Namespace: "default", Name: "unknown"}))
	require.NoError(t, m.delete(Endpoint("a/TCP", "10.244.1.9:80").Build().Key()))
	assert.Empty(t, lines(t, m, r), "what is the same is not handed over")

	require.NoError(t, m.delete(a1.Key()))
	require.NoError(t, m.set(a1))
	require.NoError(t, m.delete(b.Name))
	require.NoError(t, m.set(b))
	require.NoError(t, m.set(b1))
	assert.Empty(t, lines(t, m, r), "what changes back is not handed over")

	require.NoError(t, m.set(Node("n1").Zone("z").Build()))
	require.NoError(t, m.set(Service("a").NodePort(30080).Build()))
	require.NoError(t, m.delete(a2.Key()))
	require.NoError(t, m.set(Endpoint("a/TCP", "10.244.1.1:80").Terminating().Build()))
	require.NoError(t, m.set(Endpoint("a/TCP", "10.244.1.0:80").Build()))
	require.NoError(t, m.delete(b.Name))
	assert.Equal(t, []string{
		"SetNode",
		"DeleteEndpoint default/b/TCP -> 10.244.1.1:80", "DeleteService default/b",
		"DeleteEndpoint default/a/TCP -> 10.244.1.2:80", "SetService default/a",
		"SetEndpoint default/a/TCP -> 10.244.1.0:80", "SetEndpoint default/a/TCP -> 10.244.1.1:80",
	}, lines(t, m, r))

	require.NoError(t, m.start(t.Context()))
	r = &sink.Recorder{}
	assert.Equal(t, []string{
		"SetNode", "SetService default/a", "SetEndpoint default/a/TCP -> 10.244.1.0:80",
		"SetEndpoint default/a/TCP -> 10.244.1.1:80",
	}, lines(t, m, r))
}

func TestModelRefusesEndpointsThatBelongToNothing(t *testing.T) {
	m, r := newModelSource(), &sink.Recorder{}
	require.NoError(t, m.set(Service("a").Build()))
	want := ""
	for i := 9; i > 0; i-- {
		target := netip4(i) + ":80"
		require.NoError(t, m.set(Endpoint("a/UDP", target).Build()))
		want = "endpoint default/a/UDP -> " + target + " belongs to no service port\n" + want
	}
	require.NoError(t, m.set(Endpoint("b/TCP", "10.244.1.1:80").Build()))
	changed, err := m.flush(r)
	require.EqualError(t, err, want+"endpoint default/b/TCP -> 10.244.1.1:80 belongs to no service port")
	assert.False(t, changed)
	require.NoError(t, r.Sync(context.Background()))
	assert.Equal(t, []string{"Sync"}, r.TakeLines(), "nothing is handed over")

	require.NoError(t, m.delete(Endpoint("b/TCP", "10.244.1.1:80").Build().Key()))
	require.NoError(t, m.set(Service("a").UDPPort("", 80).Build()))
	_, err = m.flush(&sink.Recorder{})
	require.NoError(t, err, "it can be put right")

	require.NoError(t, m.set(Service("a").Build()))
	_, err = m.flush(&sink.Recorder{})
	require.ErrorContains(t, err, "default/a/UDP", "a service can lose a port under its endpoints")
	for i := range 10 {
		require.NoError(t, m.delete(Endpoint("a/UDP", netip4(i)+":80").Build().Key()))
	}
	_, err = m.flush(&sink.Recorder{})
	require.NoError(t, err)
	require.NoError(t, m.set(Endpoint("a:x/TCP", "10.244.1.1:80").Build()))
	_, err = m.flush(&sink.Recorder{})
	require.ErrorContains(t, err, "default/a:x/TCP")
}

// For any split of changes into waves, the receiver ends with the wanted state, and the calls keep the prescribed
// order.
func TestModelConverges(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		m, r := newModelSource(), &sink.Recorder{}
		require.NoError(t, m.set(Node("n1").Build()))
		services := map[model.ServiceName]*model.Service{}
		endpoints := map[model.EndpointKey]*model.Endpoint{}
		for range 300 {
			name := string(rune('a' + random.IntN(5)))
			svc := Service(name).NodePort(uint16(30000 + random.IntN(3))).Build()
			ep := Endpoint(name+"/TCP", netip4(random.IntN(6))+":80").Build()
			if random.IntN(2) == 0 {
				ep = Endpoint(name+"/TCP", ep.Target.String()).Terminating().Build()
			}
			switch random.IntN(8) {
			case 0:
				require.NoError(t, m.delete(svc.Name))
				delete(services, svc.Name)
				for key := range endpoints {
					if key.Port.Service == svc.Name {
						delete(endpoints, key)
					}
				}
			case 1:
				require.NoError(t, m.set(svc))
				services[svc.Name] = svc
			case 2, 3, 4:
				if services[svc.Name] != nil {
					require.NoError(t, m.set(ep))
					endpoints[ep.Key()] = ep
				}
			case 5:
				require.NoError(t, m.delete(ep.Key()))
				delete(endpoints, ep.Key())
			case 6:
				lines(t, m, r)
			case 7:
				if random.IntN(20) == 0 {
					require.NoError(t, m.start(t.Context()))
					r = &sink.Recorder{}
				}
			}
		}
		lines(t, m, r)
		require.Equal(t, services, r.Services(), "seed %d", seed)
		require.Equal(t, endpoints, r.Endpoints(), "seed %d", seed)
	}
}

func netip4(n int) string { return "10.244.1." + string(rune('0'+n)) }
