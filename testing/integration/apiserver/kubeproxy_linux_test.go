package apiserver

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// refusals notes the requests that a server refuses.
type refusals struct {
	http.Handler
	mu   sync.Mutex
	list []string
}

func (r *refusals) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.Handler.ServeHTTP(&watched{w, q, r}, q)
}

func (r *refusals) add(q *http.Request, code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, fmt.Sprintf("%d for %s %s", code, q.Method, q.URL))
}

// take returns the refusals so far, and forgets them.
func (r *refusals) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list = nil
	return list
}

// watched is a ResponseWriter that notes refusals.
type watched struct {
	http.ResponseWriter
	request *http.Request
	to      *refusals
}

func (w *watched) WriteHeader(code int) {
	if code >= 400 {
		w.to.add(w.request, code)
	}
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// slice is a slice of a service, with one pod.
func slice(service, pod string) metav1.Object {
	return kube.EndpointSlice("default/"+service).Port("http", podPort).Endpoint(pod).Build()
}

// TestKubeProxyFollows: an unmodified kube-proxy lists and watches testing/apiserver, follows what changes, also after
// its watches were cut and what it knew has expired, and is refused nothing.
func TestKubeProxyFollows(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			path := cluster.Program(t, "kube-proxy")
			need.Program(t, map[string]string{"nftables": "nft", "iptables": "iptables"}[mode])
			n := newNode(t)
			server, err := apiserver.New(kube.Node("node-1").InternalIP(nodeAddress).PodCIDR("10.244.1.0/24").Build(),
				kube.ServiceCIDR("kubernetes", "10.96.0.0/16"),
				kube.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build(), slice("web", pod1))
			require.NoError(t, err)
			require.NoError(t, server.SetRelease(cluster.Version(t)))
			refused := &refusals{Handler: server}
			var listener net.Listener
			n.Do(func() (err error) {
				listener, err = net.Listen("tcp4", "127.0.0.1:6443")
				return err
			})
			s := &http.Server{Handler: refused}
			served := make(chan error, 1)
			go func() { served <- s.Serve(listener) }()
			t.Cleanup(func() {
				_ = s.Close()
				<-served
			})
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			require.NoError(t, os.WriteFile(kubeconfig, []byte(apiserver.Kubeconfig("http://127.0.0.1:6443")), 0o600))

			p := n.start(path, "--kubeconfig="+kubeconfig, "--hostname-override=node-1", "--proxy-mode="+mode,
				"--cluster-cidr=10.244.0.0/16", "--oom-score-adj=0", "--conntrack-max-per-core=0",
				"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
			n.reaches(p, "10.96.0.10:80", pod1)

			require.NoError(t, server.Set(slice("web", pod2)))
			n.reaches(p, "10.96.0.10:80", pod2)

			require.NoError(t, server.Set(kube.Service("default/api").ClusterIP("10.96.0.11").Port("http", 80).Build(),
				slice("api", pod1)))
			n.reaches(p, "10.96.0.11:80", pod1)
			assert.Empty(t, refused.take(), "what kube-proxy asks for is there")

			// After a cut it resumes its watches, and after a compaction it lists again.
			for _, expire := range []bool{false, true} {
				if expire {
					server.Compact()
				}
				server.Cut()
				require.NoError(t, server.Set(slice("web", pod1), slice("api", pod2)))
				n.reaches(p, "10.96.0.10:80", pod1)
				n.reaches(p, "10.96.0.11:80", pod2)
				require.NoError(t, server.Set(slice("web", pod2), slice("api", pod1)))
				n.reaches(p, "10.96.0.10:80", pod2)
				n.reaches(p, "10.96.0.11:80", pod1)
			}
			require.NoError(t, server.Delete(slice("web", pod2)))
			n.until(p, "10.96.0.10:80", "a service without endpoints refuses",
				func(_ string, err error) bool { return err != nil })
			assert.Empty(t, refused.take())

			resources := map[string]bool{}
			for _, r := range server.Requests() {
				resources[r.String()] = true
			}
			for _, want := range []string{"watch services", "watch endpointslices.discovery.k8s.io", "watch nodes",
				"watch servicecidrs.networking.k8s.io", "create events.events.k8s.io"} {
				assert.Contains(t, resources, want)
			}
		})
	}
}
