package sink_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// bare is a sink without the optional methods, in front of another sink.
type bare struct{ recorder *sink.Recorder }

func (b bare) SetService(s *model.Service)        { b.recorder.SetService(s) }
func (b bare) DeleteService(n model.ServiceName)  { b.recorder.DeleteService(n) }
func (b bare) SetEndpoint(e *model.Endpoint)      { b.recorder.SetEndpoint(e) }
func (b bare) DeleteEndpoint(k model.EndpointKey) { b.recorder.DeleteEndpoint(k) }
func (b bare) Sync(ctx context.Context) error     { return b.recorder.Sync(ctx) }

// everyCall makes each call once.
func everyCall(s interface {
	sink.Sink
	sink.NodeSetter
	sink.Resyncer
	sink.FailureResyncer
}) error {
	s.SetNode(&model.Node{Name: "n"})
	s.DeleteEndpoint(httpKey("gone", "10.0.0.9:80"))
	s.DeleteService(name("gone"))
	s.SetService(service("a", 1))
	s.SetEndpoint(httpEndpoint("a", "10.0.0.1:80"))
	s.ForceResync()
	return s.Sync(context.Background())
}

var (
	allLines = []string{
		"SetNode n",
		"DeleteEndpoint ns/gone:http/TCP -> 10.0.0.9:80",
		"DeleteService ns/gone",
		"SetService ns/a cluster-ips=10.96.0.1; http 80/TCP; dns 53/UDP",
		"SetEndpoint ns/a:http/TCP -> 10.0.0.1:80 sets=Cluster",
		"ForceResync",
		"Sync",
	}
	bareLines = []string{allLines[1], allLines[2], allLines[3], allLines[4], allLines[6]}
)

func TestTeeMakesEveryCallToAllSinks(t *testing.T) {
	var full, plain sink.Recorder
	require.NoError(t, everyCall(sink.Tee(&full, bare{&plain})))
	assert.Equal(t, allLines, full.TakeLines())
	assert.Equal(t, bareLines, plain.TakeLines())
	require.NoError(t, everyCall(sink.Tee()))
}

func TestTeeSyncsAllSinksAndJoinsTheErrors(t *testing.T) {
	v4 := &sink.FamilyError{Family: model.IPv4, Err: errors.New("v4 broke")}
	v6 := &sink.FamilyError{Family: model.IPv6, Err: errors.New("v6 broke")}
	both := errors.New("all broke")
	for _, c := range []struct {
		name          string
		first, second error
		failed        model.FamilySet
		text          string
	}{
		{"both succeed", nil, nil, 0, ""},
		{"the first fails in one family", v4, nil, model.IPv4.Set(), "sink 1 (*sink.Recorder): IPv4: v4 broke"},
		{"the second fails in one family", nil, v6, model.IPv6.Set(), "sink 2 (sink_test.bare): IPv6: v6 broke"},
		{"each fails in a family", v4, v6, model.BothFamilies,
			"sink 1 (*sink.Recorder): IPv4: v4 broke\nsink 2 (sink_test.bare): IPv6: v6 broke"},
		{"both fail in the same family", v6, v6, model.IPv6.Set(),
			"sink 1 (*sink.Recorder): IPv6: v6 broke\nsink 2 (sink_test.bare): IPv6: v6 broke"},
		{"one fails as a whole", both, v4, model.BothFamilies,
			"sink 1 (*sink.Recorder): all broke\nsink 2 (sink_test.bare): IPv4: v4 broke"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var first, second sink.Recorder
			first.FailNext(c.first)
			second.FailNext(c.second)
			err := sink.Tee(&first, bare{&second}).Sync(t.Context())
			assert.Len(t, first.TakeWaves(), 1)
			assert.Len(t, second.TakeWaves(), 1)
			assert.Equal(t, c.failed, sink.FailedFamilies(err))
			if c.text == "" {
				assert.NoError(t, err)
				return
			}
			assert.EqualError(t, err, c.text)
			for _, e := range []error{c.first, c.second} {
				if e != nil {
					assert.ErrorIs(t, err, e)
				}
			}
		})
	}
}

func TestTeeResyncsOnlyWhatFailed(t *testing.T) {
	var healthy, broken sink.Recorder
	plain := &resyncer{}
	tee := sink.Tee(&healthy, &broken, plain)
	next := func() (lines [2][]string, forced int) {
		tee.ResyncFailed()
		_ = tee.Sync(t.Context())
		defer func() { plain.forced = 0 }()
		return [2][]string{healthy.TakeLines(), broken.TakeLines()}, plain.forced
	}
	lines, forced := next()
	assert.Equal(t, [2][]string{{"Sync"}, {"Sync"}}, lines, "nothing has failed")
	assert.Zero(t, forced)

	broken.FailNext(errors.New("broken"), errors.New("broken"))
	_, _ = next()
	lines, forced = next()
	assert.Equal(t, [2][]string{{"Sync"}, {"ResyncFailed", "Sync: broken"}}, lines)
	assert.Zero(t, forced)

	plain.err = errors.New("broken")
	_, _ = next()
	lines, forced = next()
	assert.Equal(t, [2][]string{{"Sync"}, {"Sync"}}, lines, "it has recovered")
	assert.Equal(t, 1, forced, "a sink that knows nothing else is resynced as a whole")

	plain.err = &sink.PortError{Err: errors.New("refused")}
	_, _ = next()
	_, forced = next()
	assert.Zero(t, forced, "but not for a service port")

	tee.ForceResync()
	assert.Equal(t, 1, plain.forced)
}

// resyncer is a sink that can only be resynced as a whole.
type resyncer struct {
	bare
	err    error
	forced int
}

func (r *resyncer) ForceResync()               { r.forced++ }
func (r *resyncer) Sync(context.Context) error { return r.err }

func TestTeeKeepsAPermanentErrorVisible(t *testing.T) {
	var first, second sink.Recorder
	second.FailNext(&sink.PermanentError{Err: errors.New("no such kernel feature")})
	var permanent *sink.PermanentError
	assert.ErrorAs(t, sink.Tee(&first, &second).Sync(t.Context()), &permanent)
}

// A sink around a Tee need not examine the same error again, which may name thousands of service ports.
func TestAnErrorThatStaysIsTheSameOne(t *testing.T) {
	refused, other := errors.New("refused"), errors.New("also refused")
	first, second := &sink.Recorder{}, &sink.Recorder{}
	tee := sink.Tee(first, second)
	sync := func(a, b error) error {
		first.FailNext(a)
		second.FailNext(b)
		return tee.Sync(t.Context())
	}
	require.NoError(t, sync(nil, nil))
	before := sync(refused, nil)
	require.ErrorIs(t, before, refused)
	require.Same(t, before, sync(refused, nil))
	both := sync(refused, other)
	require.ErrorIs(t, both, other)
	require.NotSame(t, both, sync(nil, refused), "of another sink")
	require.NoError(t, sync(nil, nil))
	require.EqualError(t, sync(refused, nil), before.Error())
}
