package dropin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

func TestWaitingForTheNode(t *testing.T) {
	bare, withIP := kube.Node("n1").Build(), kube.Node("n1").InternalIP("192.0.2.1").Build()
	known := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	for name, tc := range map[string]struct {
		first, later *corev1.Node  // nil: there is none; later comes ...
		at           time.Duration // ... after this, if it is not 0
		fails        bool          // listing fails until then

		want []netip.Addr
		took time.Duration
	}{
		"an IP is there":       {first: withIP, want: known},
		"an IP comes":          {first: bare, later: withIP, at: 10 * time.Second, want: known, took: 10 * time.Second},
		"the node comes":       {later: withIP, at: 10 * time.Second, want: known, took: 10 * time.Second},
		"the API server comes": {later: withIP, at: 10 * time.Second, fails: true, want: known, took: 10 * time.Second},
		"no IP ever comes":     {first: bare, took: 30 * time.Second},
		"no node ever comes":   {took: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				client := fake.NewClientset()
				client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
					node := tc.first
					if tc.at > 0 && time.Since(start) >= tc.at {
						node = tc.later
					} else if tc.fails {
						return true, nil, errors.New("nobody answers")
					}
					other := kube.Node("other").InternalIP("192.0.2.7").PodCIDR("10.1.0.0/24").Build()
					list := &corev1.NodeList{Items: []corev1.Node{*other}}
					if node != nil {
						list.Items = append(list.Items, *node)
					}
					return true, list, nil
				})
				var missing []bool
				failures := 0
				log := funcr.New(func(_, args string) {
					if strings.Contains(args, "Cannot read the Node") {
						failures++
					}
				}, funcr.Options{})
				got, err := waitForNode(klog.NewContext(t.Context(), log), client, "n1",
					func(m bool) { missing = append(missing, m) })
				require.NoError(t, err)
				require.NotEmpty(t, missing)
				assert.Equal(t, tc.first == nil && !tc.fails, missing[0])
				assert.Equal(t, tc.first == nil && tc.later == nil, missing[len(missing)-1])
				assert.Equal(t, tc.fails, failures == 1, "an error is logged once")
				assert.Equal(t, tc.want, got)
				assert.Equal(t, tc.took, time.Since(start))
			})
		})
	}
}

// What is logged during the half minute: a line for each reason, not for each attempt.
func TestWaitingForTheNodeIsLogged(t *testing.T) {
	const reading, unknown, without = "Cannot read the Node; trying again",
		"The node has no addresses yet; waiting for them, then continuing without",
		"Continuing without the node's IPs"
	resolver := &net.DNSError{Err: "i/o timeout", Name: "api.example.com"}
	for name, c := range map[string]struct {
		err   func(attempt int) error
		takes time.Duration // each request, unless its context ends before
		node  *corev1.Node
		want  map[string]int
	}{
		"an error that differs each time": {
			err: func(attempt int) error {
				return fmt.Errorf("read udp 192.0.2.1:%d->192.0.2.53:53: %w", 40000+attempt, resolver)
			},
			want: map[string]int{reading: 2, without: 1},
		},
		"the same error each time": {
			err:  func(int) error { return resolver },
			want: map[string]int{reading: 1, without: 1},
		},
		"packets are dropped": {
			err:   func(int) error { return errors.New("dial tcp 192.0.2.1:6443: i/o timeout") },
			takes: time.Minute,
			want:  map[string]int{reading: 1, without: 1},
		},
		"the Node has no addresses": {
			node: kube.Node("n1").Build(),
			want: map[string]int{unknown: 1, without: 1},
		},
		"there is no Node": { // which nodeMissing logs
			node: kube.Node("other").Build(),
			want: map[string]int{without: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				client, err := kubernetes.NewForConfig(&rest.Config{Host: "https://192.0.2.1:6443", QPS: -1,
					Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
						attempts++
						select {
						case <-time.After(c.takes):
						case <-r.Context().Done():
							return nil, r.Context().Err()
						}
						if c.err != nil {
							return nil, c.err(attempts)
						}
						body, err := json.Marshal(corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"},
							Items: []corev1.Node{*c.node}})
						return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(body)),
							Header: http.Header{"Content-Type": {"application/json"}}}, err
					})})
				require.NoError(t, err)
				lines := map[string]int{}
				log := funcr.New(func(_, args string) {
					for _, message := range []string{reading, unknown, without} {
						if strings.Contains(args, `"`+message+`"`) {
							lines[message]++
						}
						if c.err != nil {
							assert.Contains(t, args, "192.0.2.1")
						}
					}
				}, funcr.Options{})
				got, err := waitForNode(klog.NewContext(t.Context(), log), client, "n1", func(bool) {})
				require.NoError(t, err)
				assert.Empty(t, got)
				assert.Equal(t, c.want, lines)
			})
		})
	}
}

// roundTripper is a transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestNodeIPsAreInOrder(t *testing.T) {
	node := kube.Node("n1").Build()
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "192.0.2.8"},
		{Type: corev1.NodeExternalIP, Address: "192.0.2.3"},
		{Type: corev1.NodeInternalIP, Address: "2001:db8::1"},
		{Type: corev1.NodeInternalIP, Address: "wrong"},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.001"},
	}
	want := []netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddr("192.0.2.3")}
	assert.Equal(t, want, localstate.NodeIPs(node))
}

// A wrong node name is reported at once: in the log, as an Event, and by /healthz.
func TestANodeThatIsNotFoundIsToldAtOnce(t *testing.T) {
	events, written := recording(t)
	var logged []string
	log := funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
	p := &proxy{nodeName: "n1", events: events, health: health.New(0)}
	missing := p.nodeMissing(klog.NewContext(t.Context(), log))
	missing(true)
	missing(true)
	require.Len(t, logged, 1, "once")
	assert.Contains(t, logged[0], `"node"="n1"`)
	event := <-written
	assert.Equal(t, "NodeNotFound", event.Reason)
	assert.Contains(t, event.Note, `There is no Node "n1"`)
	answer := httptest.NewRecorder()
	p.health.Healthz().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	assert.Contains(t, answer.Body.String(), `"nodeFound":false`)
	missing(false)
	answer = httptest.NewRecorder()
	p.health.Livez().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/livez", nil))
	assert.NotContains(t, answer.Body.String(), "nodeFound")
}
