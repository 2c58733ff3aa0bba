package testbed

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
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// For a program without external IPs only the cluster IPs are timed, and later probes have no external IPs.
func TestAProgramWithoutExternalIPs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &timedHost{takes: time.Second}
		p := h.program()
		require.NoError(t, p.Sync(t.Context()))
		assert.InDelta(t, time.Second, p.Figures.slowestStart(), float64(time.Second))
		assert.Equal(t, []bool{true}, h.external, "the first probe")
		require.NoError(t, p.Sync(t.Context()))
		assert.InDelta(t, time.Second, p.Figures.slowest(), float64(time.Second))
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
		assert.Equal(t, time.Minute, p.Figures.limit())
		assert.Len(t, p.Figures.Starts, 1)
		assert.Len(t, p.Figures.waves, 3)
	})
}

// timedHost is a host in virtual time. Its program serves cluster IPs some time after they were written and it was
// started, and external IPs if serves is set. With denies, its API server accepts no external IPs.
type timedHost struct {
	program.Host
	takes          time.Duration
	serves, denies bool
	external       []bool // whether the Services that were written have external IPs
	ready          time.Time
}

func (h *timedHost) program() *Program {
	return &Program{Host: h, Try: h.try, Families: []model.Family{model.IPv4}, Figures: &Figures{},
		StartTimeout: time.Minute, Silence: time.Second}
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
			return &program.RefusedError{Object: "Service " + svc.Name, Reason: "no external IPs"}
		}
	}
	h.ready = time.Now().Add(h.takes)
	return nil
}

func (h *timedHost) Start(context.Context) error {
	h.ready = time.Now().Add(h.takes)
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
	if nobodys || time.Now().Before(h.ready) || cluster.ExternalIPs(model.IPv4).Contains(to) && !h.serves {
		time.Sleep(timeouts.Answer)
		return network.Seen{Observation: oracle.Observation{Verdict: oracle.Drop}}
	}
	return network.Seen{Observation: oracle.Observation{Verdict: oracle.Deliver,
		Endpoint: network.HostNamed(network.LocalPod2).ServerAt(model.IPv4)}}
}

func TestChangesOfObjects(t *testing.T) {
	object := func(name, version string) metav1.Object {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
	}
	same, old, changed, gone, fresh := object("same", "1"), object("changed", "1"), object("changed", "2"),
		object("gone", "1"), object("new", "1")
	set, deleted := changes([]metav1.Object{same, old, gone}, []metav1.Object{fresh, changed, object("same", "1")})
	assert.Equal(t, []metav1.Object{fresh, changed}, set)
	assert.Equal(t, []metav1.Object{gone}, deleted)
}
