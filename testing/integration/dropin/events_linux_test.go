package dropin_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// healthCheckFailure is the event about the service of occupyHealthCheck (S39).
var healthCheckFailure = eventsv1.Event{
	Type: corev1.EventTypeWarning, Reason: "FailedToStartServiceHealthcheck", Action: "Listen",
	Regarding: corev1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: namespace, Name: "occupied"},
}

// nodeEvent is an event about the node.
func nodeEvent(kind, reason string) eventsv1.Event {
	return eventsv1.Event{
		Type: kind, Reason: reason, Action: "StartKubeProxy",
		Regarding: corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: nodeName, UID: nodeName},
	}
}

const occupiedPort = 32123

// occupyHealthCheck makes a service whose health check cannot be served, because its port is taken on the node.
func (l *lab) occupyHealthCheck() {
	l.occupy(occupiedPort)
	l.service("occupied", loadBalancer(30099, [2]string{"198.51.100.99", "2001:db8:1b::99"}), externalLocal,
		func(s *corev1.Service) {
			s.Spec.HealthCheckNodePort = occupiedPort
		})
}

// occupy listens on a port of all addresses of the node.
func (l *lab) occupy(port int) {
	l.node.Do(func() error {
		listener, err := net.Listen("tcp", fmt.Sprint(":", port))
		if err == nil {
			l.t.Cleanup(func() { _ = listener.Close() })
		}
		return err
	})
}

// findEvent returns the event from the API server, or nil.
func (l *lab) findEvent(want eventsv1.Event) *eventsv1.Event {
	list, err := l.Client.EventsV1().Events(namespace).List(l.t.Context(), metav1.ListOptions{})
	require.NoError(l.t, err)
	for i := range list.Items {
		if e := &list.Items[i]; e.Regarding == want.Regarding && e.Type == want.Type && e.Reason == want.Reason &&
			e.Action == want.Action {
			return e
		}
	}
	return nil
}

// awaitEvent waits until the event has been written at least count times.
func (l *lab) awaitEvent(want eventsv1.Event, count int32) *eventsv1.Event {
	l.t.Helper()
	w, err := l.Client.EventsV1().Events(namespace).Watch(l.t.Context(), metav1.ListOptions{})
	require.NoError(l.t, err)
	defer w.Stop()
	deadline := time.After(waitTimeout)
	for {
		if e := l.findEvent(want); e != nil && (count == 1 || e.Series != nil && e.Series.Count >= count) {
			return e
		}
		select {
		case <-w.ResultChan():
		case <-deadline:
			require.Fail(l.t, "no such event", "%s of %s %s", want.Reason, want.Regarding.Kind, want.Regarding.Name)
		}
	}
}

func TestEventsAreWritten(t *testing.T) {
	t.Parallel()
	l := newLab(t, cluster.Options{})
	l.occupyHealthCheck()
	flags := l.flags(modes[0], l.AdminKubeconfig(l.relay.Port))
	p := l.start(flags...)
	e := l.awaitEvent(healthCheckFailure, 1)
	assert.Equal(t, "kube-proxy", e.ReportingController)
	assert.Contains(t, e.Note, fmt.Sprint(occupiedPort))
	assert.Contains(t, e.Note, nodeName)
	l.awaitEvent(nodeEvent(corev1.EventTypeNormal, "Starting"), 1)
	p.terminate()

	// The event about a fatal error is written before the program ends.
	l.occupy(10256)
	p = l.start(append(flags, "--bind-address-hard-fail")...)
	p.wait()
	assert.Error(t, p.err)
	assert.Contains(t, p.logged(), "address already in use")
	e = l.findEvent(nodeEvent(corev1.EventTypeWarning, "FailedToStartProxierHealthcheck"))
	require.NotNil(t, e)
	assert.Contains(t, e.Note, "address already in use")
}
