package dropin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	eventsclient "k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// events writes Events to the API server in the background or, without an API server, to the log. Reasons and actions
// are kube-proxy's.
type events struct {
	client      kubernetes.Interface          // nil with a brain
	broadcaster eventsclient.EventBroadcaster // nil without a client
	recorder    eventsclient.EventRecorder
	node        *corev1.ObjectReference
}

// component is the reporting component of Events.
const component = "kube-proxy"

var _ health.EventRecorder = (*events)(nil)

// newEvents returns an events that writes until ctx ends. Close it after that.
func newEvents(ctx context.Context, client kubernetes.Interface, nodeName string) (*events, error) {
	// "kubectl describe node" finds events by the Node's UID, and by its name in place of a UID. It finds no event without
	// either: https://issues.k8s.io/138524.
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: types.UID(nodeName)}
	if client == nil {
		return &events{recorder: logRecorder{klog.FromContext(ctx)}, node: node}, nil
	}
	b := eventsclient.NewBroadcaster(&eventsclient.EventSinkImpl{Interface: client.EventsV1()})
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		b.Shutdown()
		return nil, fmt.Errorf("events: %w", err)
	}
	return &events{client: client, broadcaster: b, recorder: b.NewRecorder(scheme.Scheme, component), node: node}, nil
}

func (e *events) close() {
	if e.broadcaster != nil {
		e.broadcaster.Shutdown()
	}
}

// logRecorder writes events to the log.
type logRecorder struct{ log klog.Logger }

// Eventf implements eventsclient.EventRecorder.
func (r logRecorder) Eventf(regarding, _ runtime.Object, kind, reason, action, note string, args ...any) {
	object, _ := regarding.(*corev1.ObjectReference) // events of this program always have one
	r.log.Info("Event", "kind", object.Kind, "object", klog.KRef(object.Namespace, object.Name), "type", kind,
		"reason", reason, "action", action, "note", fmt.Sprintf(note, args...))
}

// started reports that the program has begun to serve.
func (e *events) started() {
	e.recorder.Eventf(e.node, nil, corev1.EventTypeNormal, "Starting", "StartKubeProxy", "")
}

// warning reports what an operator should know about the mode.
func (e *events) warning(n notice) {
	e.recorder.Eventf(e.node, nil, corev1.EventTypeWarning, n.reason, "StartKubeProxy", "%s", n.note)
}

// lastWords limits the time for writing the Event of a fatal error.
const lastWords = 5 * time.Second

// failed reports that the program is about to exit because of an error. It writes synchronously: when it returns, the
// event has been written or writing has failed.
func (e *events) failed(ctx context.Context, reason string, err error) {
	if e.client == nil {
		return // the error is printed anyway
	}
	ctx, cancel := context.WithTimeout(ctx, lastWords)
	defer cancel()
	host, _ := os.Hostname() // like the recorder
	_, failure := e.client.EventsV1().Events(metav1.NamespaceDefault).Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", e.node.Name, time.Now().UnixNano()),
			Namespace: metav1.NamespaceDefault},
		EventTime:           metav1.NowMicro(),
		ReportingController: component,
		ReportingInstance:   component + "-" + host,
		Type:                corev1.EventTypeWarning,
		Reason:              reason,
		Action:              "StartKubeProxy",
		Regarding:           *e.node,
		Note:                err.Error(),
	}, metav1.CreateOptions{})
	if failure != nil {
		klog.FromContext(ctx).Error(failure, "Could not create the Event that says why the program exits", "reason", reason)
	}
}

// ServiceWarning implements health.EventRecorder.
func (e *events) ServiceWarning(service model.ServiceName, reason, action, note string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: service.Namespace, Name: service.Name}
	e.recorder.Eventf(ref, nil, corev1.EventTypeWarning, reason, action, "%s", note)
}

// notServed reports that a part of a service is not served.
func (e *events) notServed(_ context.Context, p frontend.Problem) {
	note := fmt.Sprintf("node %s does not serve part of port %q (%v, %v): %s", e.node.Name, p.Port.Port,
		p.Port.Protocol,
		p.Family, p.Message)
	e.ServiceWarning(p.Port.Service, string(p.Reason), "Sync", shorten(note))
}

// maxNote is the maximum length of an Event's note that the API server accepts.
const maxNote = 1024

// portFailed reports that a service port is not applied, unless notServed reports it.
func (e *events) portFailed(err *sink.PortError) {
	if errors.As(err.Err, new(frontend.Problem)) {
		return
	}
	note := fmt.Sprintf("node %s failed to apply port %q (%v, %v): %v", e.node.Name, err.Port.Port, err.Port.Protocol,
		err.Family, err.Err)
	e.ServiceWarning(err.Port.Service, "FailedToApplyServicePort", "Sync", shorten(note))
}

// shorten shortens a note to the maximum length.
func shorten(note string) string {
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote-3], "") + "..."
	}
	return note
}
