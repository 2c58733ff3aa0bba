package sink_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestRecorderKeepsCallsAndWaves(t *testing.T) {
	var r sink.Recorder
	broken := errors.New("broken")
	r.FailNext(broken, nil, broken)
	require.Equal(t, broken, everyCall(&r))
	r.SetNode(nil)
	r.SetService(nil)
	r.SetEndpoint(nil)
	require.NoError(t, r.Sync(t.Context()))
	r.SetService(service("not over", 1))

	waves := r.TakeWaves()
	require.Len(t, waves, 2)
	assert.Equal(t, broken, waves[0].Err)
	lines := append([]string(nil), allLines...)
	lines[6] = "Sync: broken"
	assert.Equal(t, lines, waves[0].Lines())
	assert.Equal(t, sink.Call{Op: sink.OpSetService, Name: name("a"), Service: service("a", 1)}, waves[0].Calls[3])
	assert.Equal(t, sink.Call{Op: sink.OpSetEndpoint, Key: httpKey("a", "10.0.0.1:80"),
		Endpoint: httpEndpoint("a", "10.0.0.1:80")}, waves[0].Calls[4])
	assert.Equal(t, []string{"SetNode nil", "SetService nil", "SetEndpoint nil", "Sync"}, waves[1].Lines())
	assert.Empty(t, r.TakeWaves(), "waves are taken once")

	assert.Equal(t, broken, r.Sync(t.Context()))
	assert.Equal(t, []string{"SetService ns/not over cluster-ips=10.96.0.1; http 80/TCP; dns 53/UDP", "Sync: broken"},
		r.TakeLines())
	assert.NoError(t, r.Sync(t.Context()))
}

func TestRecorderHoldsTheState(t *testing.T) {
	var r sink.Recorder
	n := newNaive()
	rnd := rand.New(rand.NewPCG(3, 3))
	for range 500 {
		randomCall(rnd, 5, &r, n)
		require.Equal(t, n.services, r.Services())
		require.Equal(t, n.endpoints, r.Endpoints())
		require.Equal(t, n.node, r.Node())
	}
	delete(r.Services(), name("svc-01"))
	clear(r.Endpoints())
	assert.Equal(t, n.services, r.Services(), "the maps are the caller's own")
	assert.Equal(t, n.endpoints, r.Endpoints())
}

func TestRecorderNextWave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r sink.Recorder
		go func() {
			for _, s := range []string{"a", "b", "c"} {
				time.Sleep(time.Second)
				r.SetService(service(s, 1))
				_ = r.Sync(t.Context())
			}
		}()
		for _, s := range []string{"a", "b"} {
			wave, err := r.NextWave(t.Context())
			require.NoError(t, err)
			assert.Equal(t, name(s), wave.Calls[0].Name)
		}
		time.Sleep(time.Minute)
		wave, err := r.NextWave(t.Context())
		require.NoError(t, err, "it does not wait for a wave that is there")
		assert.Equal(t, name("c"), wave.Calls[0].Name)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = r.NextWave(ctx)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestRecorderReportsCallsThatDoNotKeepTheContract(t *testing.T) {
	a1, a2 := httpEndpoint("a", "10.0.0.1:80"), httpEndpoint("a", "10.0.0.2:80")
	onlyDNS := service("a", 1)
	onlyDNS.Ports = onlyDNS.Ports[1:]
	a1Local := endpoint(a1.Key(), model.LocalSet)
	for _, c := range []struct {
		name string
		// first is the first wave, after SetNode; second is a wave after it.
		first, second func(r *sink.Recorder)
		want          []string
	}{
		{"services and endpoints come, in order",
			func(r *sink.Recorder) {
				r.SetService(service("a", 1))
				r.SetEndpoint(a1)
				r.SetEndpoint(a2)
				r.SetService(service("b", 1))
			},
			func(r *sink.Recorder) {
				r.SetNode(&model.Node{Name: "other"})
				r.DeleteService(name("b"))
				r.DeleteEndpoint(a2.Key())
				r.SetService(service("a", 2))
				r.SetEndpoint(a1Local)
			}, nil},
		{"a port goes after its endpoints",
			func(r *sink.Recorder) { r.SetService(service("a", 1)); r.SetEndpoint(a1) },
			func(r *sink.Recorder) { r.DeleteEndpoint(a1.Key()); r.SetService(onlyDNS) }, nil},
		{"a resync may be asked for anywhere",
			func(r *sink.Recorder) { r.SetService(service("a", 1)); r.ForceResync(); r.SetEndpoint(a1) },
			func(r *sink.Recorder) { r.ForceResync() }, nil},

		{"an endpoint without a service", func(r *sink.Recorder) { r.SetEndpoint(a1) }, nil,
			[]string{"wave 1: SetEndpoint ns/a:http/TCP -> 10.0.0.1:80 sets=Cluster: its service is not set"}},
		{"an endpoint of an unknown port", func(r *sink.Recorder) { r.SetService(onlyDNS); r.SetEndpoint(a1) }, nil,
			[]string{"wave 1: SetEndpoint ns/a:http/TCP -> 10.0.0.1:80 sets=Cluster: its service has no such port"}},
		{"a service goes before its endpoints",
			func(r *sink.Recorder) { r.SetService(service("a", 1)); r.SetEndpoint(a1); r.SetEndpoint(a2) },
			func(r *sink.Recorder) { r.DeleteService(name("a")) },
			[]string{
				"wave 2: DeleteService ns/a: an endpoint is still set: ns/a:http/TCP -> 10.0.0.1:80",
				"wave 2: DeleteService ns/a: an endpoint is still set: ns/a:http/TCP -> 10.0.0.2:80",
			}},
		{"a port goes before its endpoints",
			func(r *sink.Recorder) { r.SetService(service("a", 1)); r.SetEndpoint(a1) },
			func(r *sink.Recorder) { r.SetService(onlyDNS) },
			[]string{"wave 2: SetService ns/a cluster-ips=10.96.0.1; dns 53/UDP: has no port for an endpoint that is " +
				"still set: ns/a:http/TCP -> 10.0.0.1:80"}},
		{"calls that change nothing",
			func(r *sink.Recorder) { r.SetService(onlyDNS) },
			func(r *sink.Recorder) {
				r.SetNode(&model.Node{Name: "n"})
				r.DeleteEndpoint(a1.Key())
				r.SetService(onlyDNS)
				r.DeleteService(name("z"))
			},
			[]string{
				"wave 2: SetNode n: changes nothing",
				"wave 2: DeleteEndpoint ns/a:http/TCP -> 10.0.0.1:80: changes nothing",
				"wave 2: SetService ns/a cluster-ips=10.96.0.1; dns 53/UDP: changes nothing",
				"wave 2: DeleteService ns/z: changes nothing",
				"wave 2: DeleteService ns/z: comes after SetService ns/a cluster-ips=10.96.0.1; dns 53/UDP",
			}},
		{"the same endpoint again",
			func(r *sink.Recorder) { r.SetService(service("a", 1)); r.SetEndpoint(a1) },
			func(r *sink.Recorder) { r.SetEndpoint(httpEndpoint("a", "10.0.0.1:80")) },
			[]string{"wave 2: SetEndpoint ns/a:http/TCP -> 10.0.0.1:80 sets=Cluster: changes nothing"}},
		{"services out of order", func(r *sink.Recorder) {
			r.SetService(service("b", 1))
			r.SetService(service("a", 1))
		}, nil,
			[]string{"wave 1: SetService ns/a cluster-ips=10.96.0.1; http 80/TCP; dns 53/UDP: comes after SetService " +
				"ns/b cluster-ips=10.96.0.1; http 80/TCP; dns 53/UDP"}},
		{"endpoints out of order", func(r *sink.Recorder) {
			r.SetService(service("a", 1))
			r.SetEndpoint(a2)
			r.SetEndpoint(a1)
		}, nil,
			[]string{"wave 1: SetEndpoint ns/a:http/TCP -> 10.0.0.1:80 sets=Cluster: comes after SetEndpoint " +
				"ns/a:http/TCP -> 10.0.0.2:80 sets=Cluster"}},
		{"an endpoint goes after one has come",
			func(r *sink.Recorder) { r.SetService(service("a", 1)); r.SetEndpoint(a2) },
			func(r *sink.Recorder) { r.SetEndpoint(a1); r.DeleteEndpoint(a2.Key()) },
			[]string{"wave 2: DeleteEndpoint ns/a:http/TCP -> 10.0.0.2:80: comes after SetEndpoint ns/a:http/TCP -> " +
				"10.0.0.1:80 sets=Cluster"}},
		{"a service goes after another has come",
			func(r *sink.Recorder) { r.SetService(service("b", 1)) },
			func(r *sink.Recorder) { r.SetService(service("a", 1)); r.DeleteService(name("b")) },
			[]string{"wave 2: DeleteService ns/b: comes after SetService ns/a cluster-ips=10.96.0.1; http 80/TCP; " +
				"dns 53/UDP"}},
		{"the node comes after a service",
			func(r *sink.Recorder) {},
			func(r *sink.Recorder) { r.SetService(service("a", 1)); r.SetNode(&model.Node{Name: "other"}) },
			[]string{
				"wave 2: SetNode other: comes after SetService ns/a cluster-ips=10.96.0.1; http 80/TCP; dns 53/UDP"}},
		{"an endpoint goes and comes in one wave",
			func(r *sink.Recorder) { r.SetService(service("a", 1)); r.SetEndpoint(a1) },
			func(r *sink.Recorder) { r.DeleteEndpoint(a1.Key()); r.SetEndpoint(a1Local) },
			[]string{"wave 2: SetEndpoint ns/a:http/TCP -> 10.0.0.1:80 sets=Local: the second call in the wave for " +
				"endpoint ns/a:http/TCP -> 10.0.0.1:80"}},
		{"a service is added and deleted in one wave",
			func(r *sink.Recorder) {},
			func(r *sink.Recorder) { r.SetService(service("a", 1)); r.DeleteService(name("a")) },
			[]string{"wave 2: DeleteService ns/a: the second call in the wave for service ns/a"}},
		{"a failure, and nothing new",
			func(r *sink.Recorder) { r.FailNext(errors.New("broken")) },
			func(r *sink.Recorder) {},
			[]string{"wave 2: Sync: nothing new, and neither ResyncFailed nor ForceResync, after a Sync that failed"}},
		{"a failure, and then a change",
			func(r *sink.Recorder) { r.FailNext(errors.New("broken")) },
			func(r *sink.Recorder) { r.SetService(onlyDNS) }, nil},
		{"a failure with a retry",
			func(r *sink.Recorder) { r.FailNext(errors.New("broken")) },
			func(r *sink.Recorder) { r.ResyncFailed() }, nil},
		{"a failure, a change that succeeds, and then the retry",
			func(r *sink.Recorder) {
				r.FailNext(errors.New("broken"))
				_ = r.Sync(context.Background())
				r.SetService(onlyDNS)
			},
			func(r *sink.Recorder) { r.ResyncFailed() }, nil},
		{"a failure of a service port alone",
			func(r *sink.Recorder) { r.FailNext(&sink.PortError{Family: model.IPv4}) },
			func(r *sink.Recorder) {}, nil},
		{"a failure of a service port with a retry",
			func(r *sink.Recorder) { r.FailNext(&sink.PortError{Family: model.IPv4}) },
			func(r *sink.Recorder) { r.ResyncFailed() }, nil},
		{"a retry after success",
			func(r *sink.Recorder) {},
			func(r *sink.Recorder) { r.ResyncFailed() },
			[]string{"wave 2: ResyncFailed: nothing has failed"}},
		{"a failure with a resync",
			func(r *sink.Recorder) { r.FailNext(errors.New("broken")) },
			func(r *sink.Recorder) { r.ForceResync() }, nil},
		{"nil values",
			func(r *sink.Recorder) {},
			func(r *sink.Recorder) { r.SetNode(nil); r.SetService(nil); r.SetEndpoint(nil) },
			[]string{
				"wave 2: SetNode nil: the node is nil",
				"wave 2: SetService nil: the service is nil",
				"wave 2: SetEndpoint nil: the endpoint is nil",
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r sink.Recorder
			r.SetNode(&model.Node{Name: "n"})
			c.first(&r)
			_ = r.Sync(t.Context())
			if c.second != nil {
				c.second(&r)
				_ = r.Sync(t.Context())
			}
			assert.Equal(t, c.want, r.Violations())
		})
	}
	t.Run("no node in the first wave", func(t *testing.T) {
		var r sink.Recorder
		for range 2 {
			require.NoError(t, r.Sync(t.Context()))
		}
		assert.Equal(t, []string{"wave 1: Sync: the first wave has no SetNode"}, r.Violations())
	})
}

func TestRecorderReportsStatesThatTheModelRulesOut(t *testing.T) {
	var r sink.Recorder
	serving := *httpEndpoint("a", "10.0.0.1:80")
	serving.Ready, serving.Serving = true, true
	silent := *httpEndpoint("a", "10.0.0.2:80")
	silent.Ready, silent.Serving = false, false
	svc, err := model.NewService(*service("a", 1))
	require.NoError(t, err)
	r.SetNode(&model.Node{Name: "n"})
	r.SetService(svc)
	r.SetEndpoint(&serving)
	r.SetEndpoint(&silent)
	r.DeleteEndpoint(silent.Key())
	require.NoError(t, r.Sync(t.Context()))
	assert.Empty(t, r.BrokenInvariants(), "what is described counts when it is consistent, not before")

	r.SetEndpoint(&silent)
	require.NoError(t, r.Sync(t.Context()))
	require.NoError(t, r.Sync(t.Context()))
	assert.Equal(t, []string{"wave 2: endpoint ns/a:http/TCP -> 10.0.0.2:80: sets: in the Cluster set, but not serving"},
		r.BrokenInvariants(), "it is told once")
}
