package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestAServicePortThatCannotBeAppliedIsAnEventOnItsService(t *testing.T) {
	client := fake.NewClientset()
	written := make(chan *eventsv1.Event, 10)
	client.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		event := action.(clienttesting.CreateAction).GetObject().(*eventsv1.Event)
		written <- event
		return true, event, nil
	})
	e, err := newEvents(t.Context(), client, "n1")
	require.NoError(t, err)
	defer e.close()
	port := model.PortName{Service: model.ServiceName{Namespace: "tel", Name: "sip"}, Port: "sctp", Protocol: model.SCTP}
	e.portFailed(&sink.PortError{Port: port, Family: model.IPv6, Err: errors.New("no match sctp")})
	got := <-written
	assert.Equal(t, "Service tel/sip", got.Regarding.Kind+" "+got.Regarding.Namespace+"/"+got.Regarding.Name)
	assert.Equal(t, "Warning FailedToApplyServicePort Sync", got.Type+" "+got.Reason+" "+got.Action)
	assert.Equal(t, `node n1 failed to apply port "sctp" (SCTP, IPv6): no match sctp`, got.Note)

	port.Service.Name = "long" // Events of the same kind about one object are written as a series
	e.portFailed(&sink.PortError{Port: port, Family: model.IPv6, Err: errors.New(strings.Repeat("ä", 2000))})
	got = <-written
	assert.LessOrEqual(t, len(got.Note), 1024, "the API server takes no more")
	assert.True(t, strings.HasSuffix(got.Note, "ä..."))
}
