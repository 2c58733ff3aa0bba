package watch

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AllNodes is the node name for a program that works for all nodes, such as a brain.Server. No Node has it.
const AllNodes = "*"

// Source delivers cluster objects.
//
// A source that may leave Nodes out has a method DeliversNodes() bool, which says whether it delivers them. If it does
// not, nothing waits for a Node or reports that it is missing.
type Source interface {
	// Run delivers until ctx ends, and then returns nil. If it has to stop before that, it returns the reason. When it
	// returns, everything that it started has ended, and it may be called again. It does not give up because a server or a
	// file is unavailable: it logs that, waits and retries. nodeName says whose Node object to deliver: none if it is
	// empty, all if it is [AllNodes].
	Run(ctx context.Context, nodeName string, h Handler) error
}

// Handler receives what a Source delivers. Calls may come from several goroutines at once.
//
// Handlers may have further methods. Heard(kind metav1.Object, resourceVersion string) is called by a [Clientset]
// whenever the API server has sent something, which it does every minute or so even if nothing changes. It means that
// everything up to that version has been delivered, of objects with the type of kind. Calls for the first lists come
// before Synced. An empty version means that nothing is to be expected of that kind, because the server does not serve
// it, or not to this program.
//
// Bookmarks(kind metav1.Object) is called once if the server sends bookmarks for that kind, so that silence of a few
// minutes means that the watch is dead. Without bookmarks, a watch of objects that do not change is silent until
// client-go begins another one, after 5 to 10 minutes.
//
// ListIncomplete(kind metav1.Object) is called once if a streamed list of that kind does not end: by a [Clientset],
// which lists without streaming from then on, and by [Informers], which can only wait: see [ListFallback].
//
// WatchSilent(kind metav1.Object) is called each time that a [Clientset] has listed that kind anew because the API
// server had sent nothing to the watch (S68).
//
// A handler that wraps another one needs these methods, too, to pass the calls on: embedding a Handler hides them.
type Handler interface {
	// Update delivers changes that belong together: nothing may be applied while only some of them are known. The
	// objects belong to the source: the handler must not change or keep them. What comes before Synced may come in any
	// number of calls, because nothing of it may be applied before Synced.
	Update(changes ...Change)
	// Synced says that every object that existed when Run began has been delivered. It is called once for each Run,
	// even for an empty cluster.
	Synced()
}

// Change is one object that exists, whether new, changed or unchanged, or that was deleted.
type Change struct {
	// Object is a *corev1.Service, *discoveryv1.EndpointSlice, *corev1.Node or *networkingv1.ServiceCIDR.
	Object metav1.Object
	// Deleted: the object is gone. Only the type, the namespace and the name of Object count.
	Deleted bool
}
