package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// way is the way to an API server. A hook answers requests instead of that, or makes their answers be lost.
type way struct {
	http.RoundTripper
	mu   sync.Mutex
	hook func(r *http.Request, body []byte) (answer *http.Response, lost error)
}

func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	w.mu.Lock()
	hook := w.hook
	w.mu.Unlock()
	if hook == nil {
		return w.RoundTripper.RoundTrip(r)
	}
	answer, lost := hook(r, body)
	if answer != nil {
		return answer, nil
	}
	response, err := w.RoundTripper.RoundTrip(r)
	if lost != nil && err == nil {
		_ = response.Body.Close()
		return nil, lost
	}
	return response, err
}

func (w *way) set(hook func(*http.Request, []byte) (*http.Response, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook = hook
}

// status is an answer that is no object.
func status(code int, reason metav1.StatusReason, message string) *http.Response {
	text, _ := json.Marshal(&metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
		Code: int32(code), Reason: reason, Message: message})
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(text))}
}

// clusterOn returns a judge's view of an API server in the process, and the way there.
func clusterOn(t *testing.T, api *apiserver.Server, run string) (*cluster, *way) {
	t.Helper()
	config := api.Config()
	config.ContentType = "application/json"
	w := &way{RoundTripper: config.Transport}
	config.Transport = w
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return &cluster{client: client, target: "127.0.0.1:1", run: run, say: func(string) {}}, w
}

func newAPI(t *testing.T, objects ...metav1.Object) *apiserver.Server {
	t.Helper()
	api, err := apiserver.New(objects...)
	require.NoError(t, err)
	return api
}

// left are the objects of a kind, by name, but the Service of the API server itself.
func left(t *testing.T, c *cluster) (names []string) {
	t.Helper()
	services, err := c.client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range services.Items {
		if services.Items[i].Name != "kubernetes" {
			names = append(names, describe(&services.Items[i]))
		}
	}
	endpoints, err := c.client.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range endpoints.Items {
		names = append(names, describe(&endpoints.Items[i]))
	}
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range nodes.Items {
		names = append(names, describe(&nodes.Items[i]))
	}
	cidrs, err := c.client.NetworkingV1().ServiceCIDRs().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range cidrs.Items {
		names = append(names, describe(&cidrs.Items[i]))
	}
	leases, err := c.client.CoordinationV1().Leases("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range leases.Items {
		names = append(names, describe(&leases.Items[i]))
	}
	return names
}

var bothFamilies = []model.Family{model.IPv4, model.IPv6}

func TestAClusterThatIsInUseIsLeftAlone(t *testing.T) {
	for want, object := range map[string]metav1.Object{
		"a Service default/web":          kube.Service("web").Build(),
		"a Service kube-system/kube-dns": kube.Service("kube-system/kube-dns").Build(),
		"a Service other/kubernetes":     kube.Service("other/kubernetes").Build(),
		"a Node n1":                      kube.Node("n1").Build(),
	} {
		api := newAPI(t, kube.Service("kubernetes").Build(), object)
		c, _ := clusterOn(t, api, "r1")
		version := api.Version()
		err := c.take(t.Context(), bothFamilies)
		assert.ErrorContains(t, err, want)
		assert.Equal(t, version, api.Version(), "nothing was written")
	}
}

func TestRightsThatAreMissing(t *testing.T) {
	api := newAPI(t)
	c, w := clusterOn(t, api, "r1")
	version := api.Version()
	w.set(func(r *http.Request, body []byte) (*http.Response, error) {
		if strings.Contains(string(body), `"subresource":"status"`) && strings.Contains(string(body), `"nodes"`) ||
			strings.Contains(string(body), `"verb":"delete"`) && strings.Contains(string(body), `"servicecidrs"`) {
			return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(
					`{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":false}}`))}, nil
		}
		return nil, nil
	})
	err := c.take(t.Context(), bothFamilies)
	assert.ErrorContains(t, err, "the user of the kubeconfig may not: update nodes/status, delete servicecidrs")
	assert.Equal(t, version, api.Version(), "nothing was written")
}

func TestTwoJudgesOfOneCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t, kube.Service("kubernetes").Build())
		first, _ := clusterOn(t, api, "r1")
		require.NoError(t, first.take(t.Context(), bothFamilies))
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		first.lease.keep(ctx, first.foreign, func(err error) { failed <- err })

		second, _ := clusterOn(t, api, "r2")
		began := time.Now()
		err := second.take(t.Context(), bothFamilies)
		require.ErrorContains(t, err, "another judge uses the cluster")
		assert.ErrorContains(t, err, "run r1")
		assert.Less(t, time.Since(began), leaseDuration)
		assert.Contains(t, left(t, first), "ServiceCIDR "+objectName, "the second one has removed nothing")

		// The first judge stops without cleaning up, and leaves objects behind. The second one removes them.
		s := storeOf(first)
		require.NoError(t, s.Put(t.Context(), []metav1.Object{kube.Node("n1").Build(), kube.Service("web").Build()}, nil))
		cancel()
		first.lease.wait()
		second, _ = clusterOn(t, api, "r2")
		began = time.Now()
		require.NoError(t, second.take(t.Context(), bothFamilies))
		assert.Less(t, time.Since(began), 2*leaseDuration)
		assert.ElementsMatch(t, []string{"ServiceCIDR " + objectName, "Lease default/" + objectName}, left(t, second))

		// The first one wakes up, and notices; it removes nothing of the second one's.
		ctx, cancel = context.WithCancel(t.Context())
		first.lease.keep(ctx, first.foreign, func(err error) { failed <- err })
		assert.ErrorContains(t, <-failed, "another judge has taken the cluster")
		cancel()
		first.lease.release(t.Context())
		assert.NotEmpty(t, left(t, second), "that is not its lease any more")
		stale := second.lease.now
		require.NoError(t, second.lease.renew(t.Context()))
		second.lease.now = stale // as if the answer had been lost
		second.release()
		assert.Empty(t, left(t, second))
	})
}

// The lease is kept from the moment it is taken, however long the rest of the preparation takes.
func TestTheLeaseIsKeptDuringThePreparation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t, kube.Service("kubernetes").Build())
		first, w := clusterOn(t, api, "r1")
		w.set(func(r *http.Request, _ []byte) (*http.Response, error) {
			if r.Method == http.MethodPost && strings.Contains(r.URL.Path, "servicecidrs") {
				time.Sleep(2 * leaseDuration)
			}
			return nil, nil
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		first.fail = cancel
		first.taken = func() { first.lease.keep(ctx, first.foreign, cancel) }
		prepared := make(chan error, 1)
		go func() { prepared <- first.take(ctx, bothFamilies) }()
		synctest.Wait()

		second, _ := clusterOn(t, api, "r2")
		require.ErrorContains(t, second.take(t.Context(), bothFamilies), "another judge uses the cluster")
		require.NoError(t, <-prepared)
		first.release()
	})
}

// The cluster is checked during the run.
func TestWhatEndsARun(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, api *apiserver.Server, w *way)
		want   string // "": it goes on
	}{
		"a foreign Service": {func(t *testing.T, api *apiserver.Server, _ *way) {
			require.NoError(t, api.Set(kube.Service("shop/web").Build()))
		}, "the cluster has a Service shop/web"},
		"a foreign Node": {func(t *testing.T, api *apiserver.Server, _ *way) {
			require.NoError(t, api.Set(kube.Node("n7").Build()))
		}, "the cluster has a Node n7"},
		"nothing": {func(*testing.T, *apiserver.Server, *way) {}, ""},
		"a short outage": {func(_ *testing.T, _ *apiserver.Server, w *way) {
			w.set(func(*http.Request, []byte) (*http.Response, error) {
				return status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "starting"), nil
			})
			time.AfterFunc(goneTimeout/2, func() { w.set(nil) })
		}, ""},
		"an outage": {func(_ *testing.T, _ *apiserver.Server, w *way) {
			w.set(func(*http.Request, []byte) (*http.Response, error) { return nil, errors.New("no route to host") })
		}, "the API server has not answered for 1m0s"},
		"no rights any more": {func(_ *testing.T, _ *apiserver.Server, w *way) {
			w.set(func(*http.Request, []byte) (*http.Response, error) {
				return status(http.StatusForbidden, metav1.StatusReasonForbidden, "leases is forbidden"), nil
			})
		}, "leases is forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t)
				c, w := clusterOn(t, api, "r1")
				require.NoError(t, c.take(t.Context(), bothFamilies))
				ctx, cancel := context.WithTimeout(t.Context(), 3*goneTimeout)
				defer cancel()
				ctx, fail := context.WithCancelCause(ctx)
				c.lease.keep(ctx, c.foreign, fail)
				tc.change(t, api, w)
				<-ctx.Done()
				if tc.want == "" {
					assert.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
				} else {
					assert.ErrorContains(t, context.Cause(ctx), tc.want)
				}
				c.lease.wait()
			})
		})
	}
}

// The API server must hand out the suite's cluster IPs.
func TestAServerOfOneFamily(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		c, w := clusterOn(t, api, "r1")
		w.set(func(r *http.Request, body []byte) (*http.Response, error) {
			if r.Method == http.MethodPost && strings.Contains(string(body), "fd00:190::2") {
				return status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "no IPv6 here"), nil
			}
			return nil, nil
		})
		err := c.take(t.Context(), bothFamilies)
		assert.ErrorContains(t, err, "10.190.0.2 and fd00:190::2")
		assert.ErrorContains(t, err, "--lacks")
		assert.Empty(t, left(t, c), "nothing is left behind")
		assert.NoError(t, c.take(t.Context(), families("SCTP,IPv6")))
		c.release()
	})
}

func TestServiceRangesThatOverlapTheSuite(t *testing.T) {
	env := program.Node{Families: bothFamilies, HostAddresses: []netip.Addr{netip.MustParseAddr("172.30.1.1")}}
	for cidr, want := range map[string]string{
		"10.96.0.0/12": "", "fd00:96::/108": "", "no range": "",
		"10.0.0.0/8":     "the pods of the suite",
		"172.30.0.0/16":  "the node of the suite",
		"fd00:180::/112": "the pods of the suite",
	} {
		c, _ := clusterOn(t, newAPI(t, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}}}), "r1")
		if err := c.clear(t.Context(), env); want != "" {
			assert.ErrorContains(t, err, want, cidr)
		} else {
			assert.NoError(t, err, cidr)
		}
	}
}

// The program ends with an error, and writes no report, where it cannot begin.
func TestAPIServersThatCannotBeUsed(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gone := "http://" + listener.Addr().String()
	require.NoError(t, listener.Close())
	server := httptest.NewServer(newAPI(t, kube.Service("shop/web").Build()))
	defer server.Close()
	used := write("used", apiserver.Kubeconfig(server.URL))
	proxied := strings.Replace(apiserver.Kubeconfig(gone), "cluster: {", "cluster: {proxy-url: http://p:1, ", 1)
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no file":    {[]string{filepath.Join(folder, "none")}, "none: no such file"},
		"no YAML":    {[]string{write("text", "\xff{")}, "error"},
		"empty":      {[]string{write("empty", "")}, "empty"},
		"no server":  {[]string{write("gone", apiserver.Kubeconfig(gone))}, "connection refused"},
		"no host":    {[]string{write("hostless", apiserver.Kubeconfig("https://"))}, "host"},
		"no context": {[]string{used, "--context", "other"}, "other"},
		"proxy-url":  {[]string{write("proxied", proxied)}, "proxy-url"},
		"a folder":   {[]string{folder}, "is a directory"},
		"in use":     {[]string{used}, "the cluster has a Service shop/web"},
		"lanes":      {[]string{used, "--lanes", "2"}, "--lanes"},
		"beside":     {[]string{used, "--beside", "b"}, "--beside and --speed"},
		"speed":      {[]string{used, "--speed", "1x1"}, "--beside and --speed"},
	} {
		t.Run(name, func(t *testing.T) {
			out := t.TempDir()
			_, err := run(t.Context(), append([]string{"--proxy", "a", "--report", out, "--api-server"}, tc.args...),
				io.Discard, io.Discard)
			assert.ErrorContains(t, err, tc.want)
			files, err := os.ReadDir(out)
			require.NoError(t, err)
			assert.Empty(t, files)
		})
	}
	_, err = parse([]string{"--proxy", "a", "--context", "c"}, io.Discard)
	assert.ErrorContains(t, err, "--context needs --api-server")
	o, err := parse([]string{"--proxy", "a", "--api-server", "k", "--context", "c"}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, "go run ./cmd/judge --proxy 'a' --api-server 'k' --context 'c'", o.reproduce())
}

// A client on the node reaches the API server with the credentials of the kubeconfig, and checks its certificate.
func TestTheWayFromTheNode(t *testing.T) {
	api := newAPI(t, kube.Service("kubernetes").Build())
	var token string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token = r.Header.Get("Authorization")
		api.ServeHTTP(w, r)
	}))
	defer server.Close()
	folder := t.TempDir()
	writeCertificate(t, filepath.Join(folder, "ca.crt"), server)
	path := filepath.Join(folder, "kubeconfig")
	require.NoError(t, os.WriteFile(path, []byte(`apiVersion: v1
kind: Config
clusters: [{name: x, cluster: {server: "`+strings.Replace(server.URL, "127.0.0.1", "localhost", 1)+`",
  tls-server-name: example.com, certificate-authority: ca.crt}}]
users: [{name: u, user: {token: secret}}, {name: other, user: {token: not needed}}]
contexts: [{name: c, context: {cluster: x, user: u}}]
current-context: c
`), 0o600))
	config, rc, err := loadKubeconfig(path, "")
	require.NoError(t, err)
	c := &cluster{config: *config, run: "r1", say: func(string) {}}
	c.target, err = hostPort(rc.Host)
	require.NoError(t, err)
	c.client, err = kubernetes.NewForConfig(rc)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	o, err := c.open(program.Node{Families: bothFamilies}, listener)
	require.NoError(t, err)
	defer o.close()
	url, file := o.client()
	assert.Equal(t, "https://"+listener.Addr().String(), url)
	assert.NotContains(t, string(file), "not needed")
	onNode := filepath.Join(t.TempDir(), "kubeconfig") // certificates are in the file
	require.NoError(t, os.WriteFile(onNode, file, 0o600))
	_, rc, err = loadKubeconfig(onNode, "")
	require.NoError(t, err)
	assert.Equal(t, url, rc.Host)
	client, err := kubernetes.NewForConfig(rc)
	require.NoError(t, err)
	services, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Len(t, services.Items, 1)
	assert.Equal(t, "Bearer secret", token)
	assert.NoError(t, o.Disturbed())
	assert.Contains(t, o.Requests(), "1 connections")

	rc.ServerName = "another.example"
	client, err = kubernetes.NewForConfig(rc)
	require.NoError(t, err)
	_, err = client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	assert.ErrorContains(t, err, "certificate", "the name of the server is checked")

	server.CloseClientConnections()
	server.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	assert.ErrorContains(t, o.Disturbed(), "connection refused")
	assert.NoError(t, o.Disturbed(), "once")
}

// storeOf returns a store that no proxy reaches.
func storeOf(c *cluster) *store {
	return &store{cluster: c, made: map[string]metav1.Object{}, healthPorts: map[string]int32{}}
}

func get(t *testing.T, c *cluster, name string) *corev1.Service {
	t.Helper()
	svc, err := c.client.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return svc
}

func closedListener(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener
}
