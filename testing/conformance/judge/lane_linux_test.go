package judge

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// A case may start the program several times, and each start may take as long as Options.StartTimeout allows.
func TestACaseMayTakeAsLongAsItsStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &slowHost{}
		p := &testbed.Program{Host: h, Try: h.try, Families: []model.Family{model.IPv4}, Figures: &testbed.Figures{},
			StartTimeout: 10 * time.Minute, Silence: time.Second}
		b := &testbed.Testbed{Program: p}
		b.Factory.New = func(context.Context, backend.Env) (sink.Sink, error) { return p, nil }
		require.NoError(t, b.Start(t.Context(), cluster.Setup{}))
		l := &lane{judging: &judging{Options: Options{StartTimeout: p.StartTimeout}}, testbed: b,
			asked: cluster.Setup{}}
		err := l.try(t.Context(), cases.Case{}, func(ctx context.Context, b *testbed.Testbed) error {
			for range restarts {
				if err := b.Restart(ctx); err != nil {
					return err
				}
				if err := b.Put(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(t, err)
		assert.Equal(t, restarts, h.started)
		require.NoError(t, b.Drop())
	})
}

// slowHost is a host in virtual time whose program serves everything, 8 minutes after it was started.
type slowHost struct {
	program.Host
	started int
	ready   time.Time
}

func (h *slowHost) Put(context.Context, []metav1.Object, []metav1.Object) error { return nil }
func (h *slowHost) Ended() <-chan struct{}                                      { return nil }
func (h *slowHost) Usage() (time.Duration, int64)                               { return 0, 0 }
func (h *slowHost) Stop(context.Context) error                                  { return nil }

func (h *slowHost) Start(context.Context) error {
	h.started++
	h.ready = time.Now().Add(8 * time.Minute)
	return nil
}

func (h *slowHost) try(flow network.Attempt, timeouts network.Timeouts) network.Seen {
	// The judge expects that one cluster IP, which no service has, does not answer.
	nobodys := flow.Destination.Addr() == network.Nth(network.ClusterIPs(model.IPv4), 999)
	if nobodys || time.Now().Before(h.ready) {
		time.Sleep(timeouts.Answer)
		return network.Seen{Observation: oracle.Observation{Verdict: oracle.Drop}}
	}
	return network.Seen{Observation: oracle.Observation{Verdict: oracle.Deliver,
		Endpoint: network.HostNamed(network.LocalPod2).ServerAt(model.IPv4)}}
}
