package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	eventsv1 "k8s.io/client-go/tools/events"

	"sigs.k8s.io/kube-proxy-lib/healthcheck"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// events writes Events to the API server, in the background. They are reasons and actions of kube-proxy's.
type events struct {
	broadcaster eventsv1.EventBroadcaster
	recorder    eventsv1.EventRecorder
	node        *corev1.ObjectReference
}

var _ healthcheck.EventRecorder = (*events)(nil)

// newEvents returns an events that writes until ctx ends; then close it.
func newEvents(ctx context.Context, client kubernetes.Interface, nodeName string) (*events, error) {
	b := eventsv1.NewBroadcaster(&eventsv1.EventSinkImpl{Interface: client.EventsV1()})
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		b.Shutdown()
		return nil, fmt.Errorf("events: %w", err)
	}
	return &events{
		broadcaster: b,
		recorder:    b.NewRecorder(scheme.Scheme, "kube-proxy"),
		node:        &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: nodeName},
	}, nil
}

func (e *events) close() { e.broadcaster.Shutdown() }

// started tells that the program has come as far as to serve.
func (e *events) started() {
	e.recorder.Eventf(e.node, nil, corev1.EventTypeNormal, "Starting", "StartKubeProxy", "")
}

// failed tells that the program ends because of an error.
func (e *events) failed(reason string, err error) {
	e.recorder.Eventf(e.node, nil, corev1.EventTypeWarning, reason, "StartKubeProxy", "%s", err)
}

// ServiceWarning implements healthcheck.EventRecorder.
func (e *events) ServiceWarning(service model.ServiceName, reason, action, note string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: service.Namespace, Name: service.Name}
	e.recorder.Eventf(ref, nil, corev1.EventTypeWarning, reason, action, "%s", note)
}
