package sink_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// full is a sink with all the optional methods.
type full interface {
	sink.Sink
	sink.NodeSetter
	sink.Resyncer
	sink.FailureResyncer
}

func TestMiddlewareForwardsTheOptionalCallsToSinksThatHaveThem(t *testing.T) {
	for _, c := range []struct {
		name string
		wrap func(sink.Sink) full
	}{
		{"Tee", func(s sink.Sink) full { return sink.Tee(s) }},
		{"Filter", func(s sink.Sink) full { return sink.Filter(s, sink.Keep{Service: odd}) }},
		{"Rewrite", func(s sink.Sink) full {
			return sink.Rewrite(s,
				func(s *model.Service) *model.Service { return s })
		}},
		{"Count", func(s sink.Sink) full { return sink.Count(s) }},
		{"Log", func(s sink.Sink) full { return sink.Log(s, klog.Background().V(10)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r, plain sink.Recorder
			want, wantPlain := allLines, bareLines
			if c.name == "Filter" { // makes only calls that change something, at Sync
				want = []string{allLines[0], allLines[5], allLines[3], allLines[4], allLines[6]}
				wantPlain = bareLines[2:]
			}
			require.NoError(t, everyCall(c.wrap(&r)))
			assert.Equal(t, want, r.TakeLines())
			require.NoError(t, everyCall(c.wrap(bare{&plain})))
			assert.Equal(t, wantPlain, plain.TakeLines())

			broken := errors.New("broken")
			r.FailNext(broken)
			wrapped := c.wrap(&r)
			assert.ErrorIs(t, everyCall(wrapped), broken)
			r.TakeWaves()
			wrapped.ResyncFailed()
			require.NoError(t, wrapped.Sync(t.Context()))
			wrapped.ResyncFailed()
			require.NoError(t, wrapped.Sync(t.Context()))
			assert.Equal(t, []string{"ResyncFailed", "Sync", "Sync"}, r.TakeLines(), "only after a failure")
		})
	}
}

func TestRewrite(t *testing.T) {
	for _, c := range []struct {
		name    string
		rewrite func(*model.Service) *model.Service
		want    string
	}{
		{"as it is", func(s *model.Service) *model.Service { return s },
			"SetService ns/a cluster-ips=10.96.0.1; http 80/TCP; dns 53/UDP"},
		{"nil is as it is", func(s *model.Service) *model.Service { return nil },
			"SetService ns/a cluster-ips=10.96.0.1; http 80/TCP; dns 53/UDP"},
		{"another value", func(s *model.Service) *model.Service {
			c := *s
			c.SessionAffinityTimeout = time.Minute
			return &c
		}, "SetService ns/a cluster-ips=10.96.0.1 affinity=1m0s; http 80/TCP; dns 53/UDP"},
		{"another name is taken back", func(s *model.Service) *model.Service { return service("b", 2) },
			"SetService ns/a cluster-ips=10.96.0.2; http 80/TCP; dns 53/UDP"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r sink.Recorder
			rw := sink.Rewrite(&r, c.rewrite)
			s := service("a", 1)
			rw.SetService(s)
			require.NoError(t, rw.Sync(t.Context()))
			assert.Equal(t, []string{c.want, "Sync"}, r.TakeLines())
			assert.Equal(t, service("a", 1), s, "what was passed is not written to")
		})
	}
}

func TestRewriteDoesNotWriteToWhatItIsGiven(t *testing.T) {
	shared := service("shared", 9)
	var r sink.Recorder
	rw := sink.Rewrite(&r, func(*model.Service) *model.Service { return shared })
	for _, n := range []string{"a", "b"} {
		rw.SetService(service(n, 1))
	}
	assert.Equal(t, service("shared", 9), shared)
	assert.Equal(t, service("a", 9), r.Services()[name("a")])
}

func TestCount(t *testing.T) {
	var r sink.Recorder
	r.FailNext(errors.New("broken"))
	for _, next := range []sink.Sink{&r, nil} {
		c := sink.Count(next)
		c.SetNode(&model.Node{})
		for i := range 2 {
			c.SetService(service("a", byte(i)))
		}
		for range 3 {
			c.DeleteService(name("a"))
		}
		for range 4 {
			c.SetEndpoint(httpEndpoint("a", "10.0.0.1:80"))
		}
		for range 5 {
			c.DeleteEndpoint(httpKey("a", "10.0.0.1:80"))
		}
		for range 6 {
			c.ForceResync()
		}
		for range 7 {
			_ = c.Sync(t.Context())
		}
		for range 8 {
			c.ResyncFailed()
		}
		n := &c.Calls
		failed := uint64(0)
		if next != nil {
			failed = 1
		}
		assert.Equal(t, []uint64{1, 2, 3, 4, 5, 6, 7, 8, failed},
			[]uint64{n.SetNode.Load(), n.SetService.Load(), n.DeleteService.Load(),
				n.SetEndpoint.Load(), n.DeleteEndpoint.Load(), n.ForceResync.Load(), n.Sync.Load(),
				n.ResyncFailed.Load(),
				n.FailedSync.Load()})
	}
}

// slow is a sink whose Sync takes its time and fails then.
type slow struct{ *sink.Recorder }

func (s slow) Sync(ctx context.Context) error {
	time.Sleep(20 * time.Millisecond)
	return errors.New("broken")
}

func TestLogWritesEachCallOnOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := func(verbosity int, next sink.Sink) []string {
			var out bytes.Buffer
			logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out),
				textlogger.Verbosity(verbosity)))
			l := sink.Log(next, logger.V(4))
			_ = everyCall(l)
			l.SetNode(nil)
			l.ResyncFailed()
			var lines []string
			for line := range strings.Lines(out.String()) {
				_, text, found := strings.Cut(line, "] ")
				require.True(t, found, "not the beginning of an entry: %q", line)
				lines = append(lines, strings.TrimSpace(text))
			}
			return lines
		}
		want := []string{
			`"SetNode" node="node n"`,
			`"DeleteEndpoint" endpoint="ns/gone:http/TCP -> 10.0.0.9:80"`,
			`"DeleteService" service="ns/gone"`,
			`"SetService" service="service ns/a cluster-ips=10.96.0.1; http 80/TCP; dns 53/UDP"`,
			`"SetEndpoint" endpoint="endpoint ns/a:http/TCP -> 10.0.0.1:80 sets=Cluster"`,
			`"ForceResync"`,
			`"Sync" duration="0s"`,
			`"SetNode" node="none"`,
			`"ResyncFailed"`,
		}
		assert.Equal(t, want, lines(4, nil))
		want[6] = `"Sync" duration="20ms" err="broken"`
		assert.Equal(t, want, lines(4, slow{&sink.Recorder{}}))
		assert.Empty(t, lines(3, nil))
	})
}
