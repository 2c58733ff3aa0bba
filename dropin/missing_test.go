package dropin

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	componentbasev1alpha1 "k8s.io/component-base/config/v1alpha1"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// staysUnready checks that a proxy is alive but takes no traffic, and goes on doing so.
func staysUnready(t *testing.T, health string) {
	t.Helper()
	for range 20 {
		code, body := get(t, health+"/healthz")
		assert.Equal(t, http.StatusServiceUnavailable, code, body)
		code, body = get(t, health+"/livez")
		assert.Equal(t, http.StatusOK, code, body)
	}
}

// An API server answers everything but one resource: the node takes no traffic, and the process is not restarted, until
// that comes, too.
func TestTheNodeIsNotReadyWhileAListIsMissing(t *testing.T) {
	for name, test := range map[string]struct {
		resource string
		answered int64 // requests for it that are answered all the same
	}{
		"services":                            {"services", 0},
		"endpointslices":                      {"endpointslices", 0},
		"servicecidrs":                        {"servicecidrs", 0},
		"nodes":                               {"nodes", 0},
		"nodes, once the addresses are known": {"nodes", 1},
	} {
		for how, answer := range map[string]error{
			"without an answer":      nil,
			"with an internal error": apierrors.NewInternalError(errors.New("etcd is down")),
			"with too many requests": apierrors.NewTooManyRequests("later", 0),
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel() // most of the time a reflector waits before it asks again
				var objects []metav1.Object
				for _, o := range cluster() {
					objects = append(objects, o.(metav1.Object))
				}
				server, err := apiserver.New(objects...)
				require.NoError(t, err)
				asked, come := make(chan struct{}), make(chan struct{})
				var requests atomic.Int64
				askedOnce := sync.OnceFunc(func() { close(asked) })
				server.SetFaults(func(ctx context.Context, r apiserver.Request) apiserver.Fault {
					select {
					case <-come:
						return apiserver.Fault{}
					default:
					}
					if r.Resource.Resource != test.resource || requests.Add(1) <= test.answered {
						return apiserver.Fault{}
					}
					askedOnce()
					if answer != nil {
						return apiserver.Fault{Err: answer}
					}
					select {
					case <-come:
					case <-ctx.Done():
					}
					return apiserver.Fault{}
				})
				r := newRig(t)
				r.newClient = func(componentbasev1alpha1.ClientConnectionConfiguration, string) (kubernetes.Interface, error) {
					return kubernetes.NewForConfig(server.Config())
				}
				stop := r.start(t, arguments...)
				health := r.url(t, "0.0.0.0:10256")
				<-asked
				if name != "nodes" { // then the others are asked for at the same time
					waitWatched(t, server)
				}
				staysUnready(t, health)
				assert.Zero(t, r.nft.Applied())
				assert.Zero(t, r.hns.NumLoadBalancers())
				close(come)
				r.waitServed(t)
				waitHealthy(t, health)
				require.NoError(t, stop())
			})
		}
	}
}

// waitWatched waits until each resource has been asked for.
func waitWatched(t *testing.T, server *apiserver.Server) {
	t.Helper()
	require.Eventually(t, func() bool {
		requests := server.Requests()
		for _, resource := range []string{"services", "endpointslices", "servicecidrs", "nodes"} {
			if !slices.ContainsFunc(requests, func(r apiserver.Request) bool {
				return r.Verb == "watch" && r.Resource.Resource == resource
			}) {
				return false
			}
		}
		return true
	}, time.Minute, time.Millisecond)
}

// Other things that a mode waits for also keep the node from being ready.
func TestTheNodeIsNotReadyBeforeTheFirstRules(t *testing.T) {
	needModesOfLinux(t)
	t.Run("podCIDRs are missing", func(t *testing.T) {
		r := newRig(t, append(cluster()[1:], kube.Node("n1").InternalIP("192.0.2.1").Build())...)
		watching := r.watches("nodes")
		r.start(t, append(ownMode(), "--detect-local-mode=NodeCIDR")...)
		health := r.url(t, "0.0.0.0:10256")
		<-watching
		staysUnready(t, health)
		assert.Zero(t, r.nft.Applied())
		_, err := r.client.CoreV1().Nodes().Update(t.Context(), kube.Node("n1").InternalIP("192.0.2.1").
			PodCIDR("10.244.1.0/24").Build(), metav1.UpdateOptions{})
		require.NoError(t, err)
		r.waitServed(t)
		waitHealthy(t, health)
	})
	t.Run("the kernel refuses the rules", func(t *testing.T) {
		r := newRig(t, cluster()...)
		var mu sync.Mutex
		broken, tried := true, make(chan struct{}, 1000)
		r.nftables = &refusingNFTables{Interface: r.nft, refuses: func() bool {
			mu.Lock()
			defer mu.Unlock()
			tried <- struct{}{}
			return broken
		}}
		r.start(t, arguments...)
		health := r.url(t, "0.0.0.0:10256")
		<-tried
		staysUnready(t, health)
		mu.Lock()
		broken = false
		mu.Unlock()
		r.waitServed(t)
		waitHealthy(t, health)
	})
}

type refusingNFTables struct {
	dataplane.Interface
	refuses func() bool
}

func (n *refusingNFTables) Apply(ctx context.Context, tx *dataplane.Transaction) error {
	if n.refuses() {
		return errors.New("no memory")
	}
	return n.Interface.Apply(ctx, tx)
}

// incompleteSource has objects, but is not complete before the test says so.
type incompleteSource struct {
	*testBrain
	complete chan struct{}
}

// Run implements watch.Source.
func (s *incompleteSource) Run(ctx context.Context, _ string, h watch.Handler) error {
	for _, o := range s.objects {
		h.Update(watch.Change{Object: o.(metav1.Object)})
	}
	select {
	case <-s.complete:
		h.Synced()
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}

// A brain that has not listed everything has nothing to send.
func TestTheNodeIsNotReadyWhileItsBrainIsNot(t *testing.T) {
	b := newBrain(t, cluster()...)
	source := &incompleteSource{b, make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	server, err := brain.New(ctx, brain.Options{Source: source})
	require.NoError(t, err)
	listener, err := brain.Listen(ctx, b.target, 0)
	require.NoError(t, err)
	accepted := &acceptedListener{Listener: listener, accepted: make(chan struct{}, 1)}
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, server.Run(ctx)) })
	wg.Go(func() { assert.NoError(t, server.Serve(ctx, accepted, brain.ServeOptions{})) })
	defer wg.Wait()
	defer cancel()
	r := newBrainRig(t)
	stop := r.start(t, append(arguments, "--server="+b.target)...)
	health := r.url(t, "0.0.0.0:10256")
	<-accepted.accepted
	staysUnready(t, health)
	assert.Zero(t, r.nft.Applied())
	close(source.complete)
	r.waitServed(t)
	waitHealthy(t, health)
	require.NoError(t, stop())
}

// acceptedListener tells of connections.
type acceptedListener struct {
	net.Listener
	accepted chan struct{}
}

func (l *acceptedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		select {
		case l.accepted <- struct{}{}:
		default:
		}
	}
	return conn, err
}
