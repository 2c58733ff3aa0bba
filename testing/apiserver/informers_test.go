package apiserver_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

func service(name, ip string) *corev1.Service {
	return kube.Service(name).ClusterIP(ip).Port("http", 80).Build()
}

// informed runs informers until the test ends. It returns the changes of Services: "name ip", or "name deleted".
func informed(t *testing.T, config *rest.Config) <-chan string {
	ctx, cancel := context.WithCancel(withTimeout(t))
	factory := informers.NewSharedInformerFactory(clientOf(t, config), 0)
	changes := make(chan string, 100)
	tell := func(o any) { changes <- o.(*corev1.Service).Name + " " + o.(*corev1.Service).Spec.ClusterIP }
	update := func(old, o any) {
		if old.(*corev1.Service).ResourceVersion != o.(*corev1.Service).ResourceVersion { // not just listed again
			tell(o)
		}
	}
	_, err := factory.Core().V1().Services().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell, UpdateFunc: update,
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			changes <- o.(*corev1.Service).Name + " deleted"
		},
	})
	require.NoError(t, err)
	factory.Discovery().V1().EndpointSlices().Informer()
	factory.Networking().V1().ServiceCIDRs().Informer()
	factory.Core().V1().Nodes().Informer()
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		require.True(t, synced, kind)
	}
	return changes
}

// next returns the next change.
func next(t *testing.T, changes <-chan string) string {
	t.Helper()
	select {
	case c := <-changes:
		return c
	case <-withTimeout(t).Done():
		t.Fatal("waited in vain")
		return ""
	}
}

// TestInformersFollow runs client-go's informers by HTTP, in each encoding, with and without streamed lists: through
// changes, a cut, and versions that have expired.
func TestInformersFollow(t *testing.T) {
	for _, encoding := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		for _, streams := range []bool{true, false} {
			t.Run(encoding+map[bool]string{true: ", streamed", false: ", listed"}[streams], func(t *testing.T) {
				t.Parallel()
				s, config := newServer(t, service("a", "10.96.0.1"), service("b", "10.96.0.2"),
					kube.EndpointSlice("a").Endpoint("10.244.0.1").Build(), kube.Node("n1").Build(),
					kube.ServiceCIDR("kubernetes", "10.96.0.0/12"))
				release := make(chan struct{})
				close(release)
				faults := func(release chan struct{}) {
					s.SetFaults(func(ctx context.Context, r apiserver.Request) (f apiserver.Fault) {
						if r.StreamsList() && !streams {
							f.Err = apierrors.NewBadRequest("sendInitialEvents is forbidden")
						}
						select {
						case <-release:
						case <-ctx.Done():
						}
						return f
					})
				}
				faults(release)
				config.ContentType, config.AcceptContentTypes = encoding, encoding
				changes := informed(t, config)
				assert.ElementsMatch(t, []string{"a 10.96.0.1", "b 10.96.0.2"},
					[]string{next(t, changes), next(t, changes)})

				set(t, s, service("c", "10.96.0.3"))
				assert.Equal(t, "c 10.96.0.3", next(t, changes))
				set(t, s, service("c", "10.96.0.4"))
				assert.Equal(t, "c 10.96.0.4", next(t, changes))
				require.NoError(t, s.Delete(service("a", "")))
				assert.Equal(t, "a deleted", next(t, changes))

				release = make(chan struct{})
				faults(release)
				s.Cut()
				require.NoError(t, s.Delete(service("b", "")))
				set(t, s, service("d", "10.96.0.5"))
				s.Compact()
				close(release)
				assert.ElementsMatch(t, []string{"b deleted", "d 10.96.0.5"},
					[]string{next(t, changes), next(t, changes)})
				lists, streamed, _ := requests(s, "services")
				if streams {
					assert.Equal(t, []int{0, 2}, []int{lists, streamed}, "lists and streamed ones")
				} else {
					assert.Equal(t, 2, lists, "lists")
				}
				for _, r := range s.Requests() {
					assert.Contains(t, r.Header.Get("Accept"), encoding, r)
				}
			})
		}
	}
}

// A watch that was cut resumes where it ended, without another list.
func TestACutWatchResumes(t *testing.T) {
	s, config := newServer(t, service("a", "10.96.0.1"))
	changes := informed(t, config)
	require.Equal(t, "a 10.96.0.1", next(t, changes))
	set(t, s, service("b", "10.96.0.2"))
	require.Equal(t, "b 10.96.0.2", next(t, changes))
	s.Cut()
	set(t, s, service("c", "10.96.0.3"))
	assert.Equal(t, "c 10.96.0.3", next(t, changes))
	lists, streamed, watches := requests(s, "services")
	assert.Equal(t, []int{0, 1, 1}, []int{lists, streamed, watches})
}
