package watch

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AllNodes is the node name for a program that works for all nodes, such as a remote.Server. No Node has it.
const AllNodes = "*"

// Source delivers cluster objects.
type Source interface {
	// Run delivers until ctx ends, and then returns nil, or until it cannot go on, and then returns the reason. When it
	// returns, everything that it started has ended, and it may be called again. It does not give up because a server
	// or a file is unavailable: it waits, logs and retries. nodeName is the node whose Node object is wanted; if it is
	// empty, none is, and all are if it is [AllNodes].
	Run(ctx context.Context, nodeName string, h Handler) error
}

// Handler receives what a Source delivers. Calls may come from several goroutines at once.
type Handler interface {
	// Update hands over changes that belong together: nothing is applied while only some of them are known. The objects
	// are the source's own: the handler neither changes nor keeps them.
	Update(changes ...Change)
	// Synced says that every object that existed when Run began has been handed over. It is called once for a Run, and
	// an empty cluster is complete too.
	Synced()
}

// Change is one object that exists, whether new, changed or unchanged, or that is gone.
type Change struct {
	// Object is a *corev1.Service, *discoveryv1.EndpointSlice, *corev1.Node or *networkingv1.ServiceCIDR.
	Object metav1.Object
	// Deleted: the object is gone. Only the type, the namespace and the name of Object count.
	Deleted bool
}
