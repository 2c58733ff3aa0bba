package fakemodel

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// backend is a sink with a dataplane that outlives it.
type backend struct {
	*sink.Recorder
	dataplane *[]string
	err       error
}

func (b *backend) Sync(ctx context.Context) error {
	if b.err != nil {
		b.FailNext(b.err)
	}
	err := b.Recorder.Sync(ctx)
	if err == nil {
		*b.dataplane = append(*b.dataplane, b.TakeLines()...)
	}
	return err
}

func TestDriverWithModelValues(t *testing.T) {
	var dataplane []string
	var made []*backend
	d := NewDriver(t, Options{NewSink: func() sink.Sink {
		made = append(made, &backend{Recorder: &sink.Recorder{}, dataplane: &dataplane})
		return made[len(made)-1]
	}})
	require.Len(t, made, 1)
	web := Service("web").ClusterIP("10.96.0.10").Build()
	ep := Endpoint("web/TCP", "10.244.1.5:8080").Local().OnNode("n1").Build()

	d.Set(ep, web)
	require.Empty(t, d.Transcript(), "nothing is told before Sync")
	d.Sync()
	d.Want("SetNode n1", "SetService default/web cluster-ips=10.96.0.10",
		"SetEndpoint default/web/TCP -> 10.244.1.5:8080 sets=Cluster,Local", "Sync")
	assert.Len(t, dataplane, 4, "the sink is told the same: %v", dataplane)

	d.Set(web, ep)
	d.Sync()
	d.Want()

	d.Resync()
	d.Want("ForceResync", "Sync")

	d.Set(Node("n1").Zone("a").Build())
	d.Delete(ep)
	d.Sync()
	d.Want("SetNode n1 zone=a", "DeleteEndpoint default/web/TCP -> 10.244.1.5:8080", "Sync")

	d.Set(ep)
	d.Sync()
	d.Delete(ep.Key())
	d.Set(Service("b").Build())
	d.Sync()
	d.Delete(web.Name, Service("b").Build())
	d.Sync()
	d.Want("SetEndpoint", "Sync", "SetService default/b", "DeleteEndpoint default/web/TCP -> 10.244.1.5:8080", "Sync",
		"DeleteService default/b", "DeleteService default/web", "Sync")
	assert.Equal(t, "node n1 zone=a\n", d.State().String())
}

func TestDriverWithClusterObjects(t *testing.T) {
	d := NewDriver(t, Options{State: localstate.Options{NodeName: "n7"}})
	slice := kube.EndpointSlice("web").Endpoint("10.244.1.5").OnNode("n7")
	service := kube.Service("web").ClusterIP("10.96.0.10").Build()
	d.Set(slice.Build(), service, kube.Node("n7").Zone("a").Build(), kube.ServiceCIDR("kubernetes", "10.96.0.0/16"))
	d.Sync()
	d.Want("SetNode n7 zone=a services=10.96.0.0/16", "SetService default/web",
		"SetEndpoint default/web/TCP -> 10.244.1.5:8080 sets=Cluster node=n7 local", "Sync")

	d.Set(slice.Endpoint("10.244.2.5").OnNode("n2").Build())
	d.Delete(kube.ServiceCIDR("kubernetes"))
	d.Sync()
	d.Want("SetNode n7 zone=a", "SetEndpoint default/web/TCP -> 10.244.2.5:8080 sets=Cluster node=n2", "Sync")

	d.Delete(kube.Node("n7").Build(), service, slice.Build())
	d.Sync()
	d.Want("SetNode n7 zone=a not-eligible", "DeleteEndpoint default/web/TCP -> 10.244.1.5:8080",
		"DeleteEndpoint default/web/TCP -> 10.244.2.5:8080", "DeleteService default/web", "Sync")

	d.Set(kube.Service("web").ClusterIP("10.96.0.11").Port("", 80).Build())
	d.Sync()
	d.Want("SetService default/web cluster-ips=10.96.0.11", "Sync")
}

func TestDriverWithNothing(t *testing.T) {
	d := NewDriver(t, Options{})
	d.Sync()
	d.Want("SetNode n1", "Sync")
}

func TestDriverRetries(t *testing.T) {
	boom := errors.New("boom")
	b := &backend{Recorder: &sink.Recorder{}, dataplane: new([]string)}
	d := NewDriver(t, Options{NewSink: func() sink.Sink { return b }})
	b.err = boom
	require.ErrorIs(t, d.TrySync(), boom)
	d.Want("SetNode n1", "Sync: boom")
	d.FailNext(nil, ErrFault)
	require.NoError(t, d.TrySync())
	d.Want("ResyncFailed", "Sync")
	d.Set(Service("web").Build())
	require.ErrorIs(t, d.TrySync(), ErrFault)
	d.Want("SetService default/web", "Sync: injected fault")
	assert.Empty(t, *b.dataplane, "the sink did not hear of a Sync")
	b.err = nil
	d.Sync()
	d.Want("ResyncFailed", "Sync")
	d.Sync()
	d.Want()

	d.Set(Service("b").Build())
	d.FailNext(boom, boom)
	assert.Equal(t, 3, syncUntilApplied(t, d, 3))
	d.Want("SetService default/b", "Sync: boom", "ResyncFailed", "Sync: boom", "ResyncFailed", "Sync")
}

func TestDriverSyncsWithoutNewsOnRequest(t *testing.T) {
	d := NewDriver(t, Options{EverySync: true})
	d.Sync()
	d.Sync()
	d.Want("SetNode n1", "Sync", "Sync")
}

func TestDriverMakesWavesThatAreNoRetry(t *testing.T) {
	type key struct{}
	b := &backend{Recorder: &sink.Recorder{}, dataplane: new([]string)}
	var got any
	d := NewDriver(t, Options{NewSink: func() sink.Sink {
		return syncFunc{b, func(ctx context.Context) { got = ctx.Value(key{}) }}
	}})
	ctx := context.WithValue(t.Context(), key{}, "a context of its own")
	require.NoError(t, d.Wave(ctx))
	assert.Equal(t, "a context of its own", got)
	require.NoError(t, d.Wave(ctx))
	d.Want("SetNode n1", "Sync", "Sync")

	d.FailNext(ErrFault)
	d.Set(Service("a").Build())
	require.ErrorIs(t, d.Wave(ctx), ErrFault)
	d.Set(Service("b").Build())
	require.NoError(t, d.Wave(ctx))
	d.Want("SetService default/a", "Sync: injected fault", "SetService default/b", "Sync")
}

// syncFunc is a sink that calls a function with the context of each Sync.
type syncFunc struct {
	*backend
	called func(context.Context)
}

func (s syncFunc) Sync(ctx context.Context) error {
	s.called(ctx)
	return s.backend.Sync(ctx)
}

func TestDriverRestarts(t *testing.T) {
	service := kube.Service("web").ClusterIP("10.96.0.10").Build()
	slice := kube.EndpointSlice("web").Endpoint("10.244.1.5").Build()
	for name, objects := range map[string][]any{
		"cluster objects": {kube.Node("n1").Build(), service, slice},
		"model values": {Service("web").ClusterIP("10.96.0.10").Build(),
			Endpoint("web/TCP", "10.244.1.5:8080").Build()},
	} {
		t.Run(name, func(t *testing.T) {
			var dataplane []string
			var made []*backend
			d := NewDriver(t, Options{NewSink: func() sink.Sink {
				made = append(made, &backend{Recorder: &sink.Recorder{}, dataplane: &dataplane})
				return made[len(made)-1]
			}})
			d.Set(objects...)
			d.Sync()
			d.FailNext(ErrFault)
			_ = d.Wave(t.Context()) // the restart comes while a retry is due
			d.Transcript()
			before := d.State().String()

			d.Restart()
			require.Len(t, made, 2)
			assert.Len(t, dataplane, 4, "the dataplane is kept")
			assert.Empty(t, d.State().String(), "the new sink has been told nothing")
			d.Sync()
			d.Want("Restart", "SetNode n1", "SetService default/web", "SetEndpoint default/web/TCP -> 10.244.1.5:8080",
				"Sync")
			assert.Equal(t, before, d.State().String())
			assert.Len(t, dataplane, 8)
		})
	}

	t.Run("objects are kept as they were set", func(t *testing.T) {
		d := NewDriver(t, Options{})
		service := service.DeepCopy()
		d.Set(service, slice)
		service.Spec.Ports = nil
		d.Delete(slice)
		d.Restart()
		d.Sync()
		d.Want("Restart", "SetNode n1", "SetService default/web cluster-ips=10.96.0.10; 80/TCP", "Sync")
	})
}

// carelessSource passes on an endpoint without its service.
type carelessSource struct{ source }

func (carelessSource) flush(to localstate.Receiver) (bool, error) {
	to.SetEndpoint(Endpoint("web/TCP", "10.244.1.5:8080").Build())
	return true, nil
}

func TestDriverKeepsObjectsOfTheSameName(t *testing.T) {
	d := NewDriver(t, Options{})
	d.Set(kube.Service("web").Build(), kube.EndpointSlice("web").Name("web").Endpoint("10.244.1.5").Build())
	d.Restart()
	d.Sync()
	d.Want("Restart", "SetNode n1", "SetService default/web", "SetEndpoint default/web/TCP -> 10.244.1.5:8080", "Sync")
}

func TestDriverFailuresAreReadable(t *testing.T) {
	web := Service("web").ClusterIP("10.96.0.10").Build()
	tests := []struct {
		name string
		fail func(tb testing.TB)
		want []string
	}{
		{"a wrong expectation shows the lines that differ, and those that do not", func(tb testing.TB) {
			d := NewDriver(tb, Options{})
			d.Set(web, Endpoint("web/TCP", "10.244.1.5:8080").Build())
			d.Sync()
			d.Want("SetNode n1", "SetService default/web", "SetEndpoint default/web/TCP -> 10.244.1.6:8080", "Sync")
		}, []string{"the calls to the sink, or their order, are not the expected ones",
			"\n\t            \t-SetEndpoint default/web/TCP -> 10.244.1.6:8080\n" +
				"\t            \t+SetEndpoint default/web/TCP -> 10.244.1.5:8080 sets=Cluster\n",
			"\n\t            \t Sync"}},
		{"calls in another order are wrong", func(tb testing.TB) {
			d := NewDriver(tb, Options{})
			d.Set(web, Endpoint("web/TCP", "10.244.1.5:8080").Build())
			d.Sync()
			d.Want("SetNode n1", "SetEndpoint", "SetService", "Sync")
		}, []string{"+SetService default/web cluster-ips=10.96.0.10"}},
		{"a call too many is wrong", func(tb testing.TB) {
			d := NewDriver(tb, Options{})
			d.Sync()
			d.Want("SetNode n1")
		}, []string{"+Sync"}},
		{"a call that is missing is wrong", func(tb testing.TB) {
			d := NewDriver(tb, Options{})
			d.Sync()
			d.Want("SetNode n1", "Sync", "Sync")
		}, []string{"-Sync"}},
		{"half a word does not stand for the whole", func(tb testing.TB) {
			d := NewDriver(tb, Options{})
			d.Sync()
			d.Want("SetNo", "Sync")
		}, []string{"-SetNo", "+SetNode n1"}},
		{"a failed Sync does not pass for one that succeeds", func(tb testing.TB) {
			d := NewDriver(tb, Options{})
			d.FailNext(ErrFault)
			_ = d.TrySync()
			d.Want("SetNode n1", "Sync")
		}, []string{"+Sync: injected fault"}},
		{"a Sync that fails ends the test", func(tb testing.TB) {
			d := NewDriver(tb, Options{})
			d.FailNext(ErrFault)
			d.Sync()
		}, []string{"fakemodel: Sync: injected fault"}},
		{"so does a Resync", func(tb testing.TB) {
			d := NewDriver(tb, Options{})
			d.FailNext(ErrFault)
			d.Resync()
		}, []string{"fakemodel: Sync: injected fault"}},
		{"two kinds of food do not mix", func(tb testing.TB) {
			d := NewDriver(tb, Options{})
			d.Set(web)
			d.Set(kube.Service("web").Build())
		}, []string{"fakemodel: a driver that is fed with model values cannot take a *v1.Service"}},
		{"nor the other way round", func(tb testing.TB) {
			d := NewDriver(tb, Options{})
			d.Set(kube.Service("web").Build())
			d.Delete(web.Name)
		}, []string{"fakemodel: a driver that is fed with cluster objects cannot take a model.ServiceName"}},
		{"what is no object is refused", func(tb testing.TB) {
			NewDriver(tb, Options{}).Set(&corev1.Pod{})
		}, []string{"fakemodel: a driver cannot be fed with a *v1.Pod"}},
		{"a name cannot be set", func(tb testing.TB) {
			NewDriver(tb, Options{}).Set(model.ServiceName{})
		}, []string{"fakemodel: a model.ServiceName can only be deleted"}},
		{"a node cannot be deleted", func(tb testing.TB) {
			NewDriver(tb, Options{}).Delete(Node("n1").Build())
		}, []string{"fakemodel: a *model.Node cannot be deleted"}},
		{"an endpoint without a service is named", func(tb testing.TB) {
			d := NewDriver(tb, Options{})
			d.Set(Endpoint("web/TCP", "10.244.1.5:8080").Build())
			d.Sync()
		}, []string{"fakemodel: endpoint default/web/TCP -> 10.244.1.5:8080 belongs to no service port"}},
		{"calls that break the sink's contract are named", func(tb testing.TB) {
			d := NewDriver(tb, Options{})
			d.source = carelessSource{}
			d.Sync()
		}, []string{"fakemodel: the contract of sink.Sink was not kept:\n",
			"SetEndpoint default/web/TCP -> 10.244.1.5:8080 sets=Cluster: its service is not set",
			"the first wave has no SetNode"}},
		{"wrong options are named", func(tb testing.TB) {
			NewDriver(tb, Options{State: localstate.Options{Families: []model.Family{5}}}).Set(
				kube.Service("web").Build())
		}, []string{"fakemodel: invalid options: "}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := failure(t, tt.fail)
			for _, want := range tt.want {
				assert.Contains(t, got, want)
			}
		})
	}
}

// syncUntilApplied calls TrySync until the sink has no error, at most tries times, and returns how often that was.
func syncUntilApplied(t *testing.T, d *Driver, tries int) int {
	t.Helper()
	var err error
	for i := range tries {
		if err = d.TrySync(); err == nil {
			return i + 1
		}
	}
	require.NoError(t, err, "in each of %d tries", tries)
	return tries
}
