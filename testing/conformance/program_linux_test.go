package conformance

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/judge"
)

// For a program without external IPs only the cluster IPs are timed, and later probes have no external IPs.
func TestAProgramWithoutExternalIPs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &timedHost{takes: time.Second}
		p := h.program()
		require.NoError(t, p.Sync(t.Context()))
		assert.InDelta(t, time.Second, p.figures.slowestStart(), float64(time.Second))
		assert.Equal(t, []bool{true}, h.external, "the first probe")
		require.NoError(t, p.Sync(t.Context()))
		assert.InDelta(t, time.Second, p.figures.slowest(), float64(time.Second))
		assert.Equal(t, []bool{true, false}, h.external)
	})
}

// An API server may refuse external IPs, as its admission plugin DenyServiceExternalIPs does.
func TestAnAPIServerWithoutExternalIPs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &timedHost{takes: time.Second, denies: true}
		p := h.program()
		began := time.Now()
		require.NoError(t, p.Sync(t.Context()))
		require.NoError(t, p.Sync(t.Context()))
		assert.Equal(t, []bool{true, false, false}, h.external)
		assert.Less(t, time.Since(began), 10*time.Second, "what nobody may have is not waited for")
		assert.Len(t, p.probe, 2, "each object is deleted once")
	})
}

// A change that takes as long as a start is still a change.
func TestAChangeIsNoStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &timedHost{takes: time.Second, serves: true}
		p := h.program()
		require.NoError(t, p.Sync(t.Context()))
		h.takes = 8 * time.Second
		for range 3 {
			require.NoError(t, p.Sync(t.Context()))
		}
		assert.Equal(t, defaultStartTimeout, p.figures.limit())
		assert.Len(t, p.figures.starts, 1)
		assert.Len(t, p.figures.waves, 3)
	})
}

// A case may start the program several times, and each start may take as long as judge.Options.StartTimeout allows.
func TestACaseMayTakeAsLongAsItsStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &timedHost{starts: 8 * time.Minute, takes: time.Second, serves: true}
		p := h.program()
		p.startTimeout = 10 * time.Minute
		b := &testbed{program: p, sink: p, setup: setup{}, end: func() {}, id: "timed"}
		b.factory.New = func(context.Context, Env) (sink.Sink, error) { return p, nil }
		l := &lane{judging: &judging{Options: judge.Options{StartTimeout: p.startTimeout}}, testbed: b,
			asked: setup{}}
		err := l.try(t.Context(), testCase{setup: setup{}, run: func(ctx context.Context, b *testbed) error {
			for range restarts {
				if err := b.restart(ctx); err != nil {
					return err
				}
				if err := b.put(ctx); err != nil {
					return err
				}
			}
			return nil
		}})
		require.NoError(t, err)
		assert.Len(t, p.figures.starts, restarts)
		b.end()
	})
}

// timedHost is a host in virtual time. Its program serves cluster IPs some time after they were written and it was
// started, and external IPs if serves is set. With denies, its API server accepts no external IPs.
type timedHost struct {
	judge.Host
	starts, takes  time.Duration
	serves, denies bool
	external       []bool // whether the Services that were written have external IPs
	ready          time.Time
}

func (h *timedHost) program() *program {
	return &program{host: h, try: h.try, families: []model.Family{model.IPv4}, figures: &figures{},
		startTimeout: defaultStartTimeout, silence: time.Second}
}

func (h *timedHost) Put(_ context.Context, set, _ []metav1.Object) error {
	for _, o := range set {
		svc, ok := o.(*corev1.Service)
		if !ok {
			continue
		}
		external := len(svc.Spec.ExternalIPs) > 0
		h.external = append(h.external, external)
		if external && h.denies {
			return &judge.RefusedError{Object: "Service " + svc.Name, Reason: "no external IPs"}
		}
	}
	h.ready = time.Now().Add(h.takes)
	return nil
}

func (h *timedHost) Start(context.Context) error {
	h.ready = time.Now().Add(max(h.starts, h.takes))
	return nil
}

func (h *timedHost) Ended() <-chan struct{}        { return nil }
func (h *timedHost) Failure() error                { return errors.New("it has not ended") }
func (h *timedHost) Requests() string              { return "nothing" }
func (h *timedHost) Usage() (time.Duration, int64) { return 0, 0 }
func (h *timedHost) Stop(context.Context) error    { return nil }

func (h *timedHost) try(flow network.Attempt, timeouts network.Timeouts) network.Seen {
	to := flow.Destination.Addr()
	nobodys := to == network.Nth(network.ClusterIPs(model.IPv4), firstProbe-1)
	if nobodys || time.Now().Before(h.ready) || externalIPs(model.IPv4).Contains(to) && !h.serves {
		time.Sleep(timeouts.Answer)
		return network.Seen{Observation: oracle.Observation{Verdict: oracle.Drop}}
	}
	return network.Seen{Observation: oracle.Observation{Verdict: oracle.Deliver,
		Endpoint: network.PlaceNamed(localPod2).ServerAt(model.IPv4)}}
}
