package main

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

func writeCertificate(t *testing.T, path string, server *httptest.Server) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

// The objects of a node have a label, a status, and a health check port that no Service gets as a node port.
func TestObjectsInARealCluster(t *testing.T) {
	api := newAPI(t)
	c, _ := clusterOn(t, api, "r1")
	s := storeOf(c)
	vip := func(name string) *kube.ServiceBuilder {
		return kube.Service(name).Port("http", 80).LoadBalancerIP("192.0.2.1").ExternalLocal()
	}
	require.NoError(t, s.Put(t.Context(), []metav1.Object{kube.Node("n1").InternalIP("10.0.0.1").Build(), vip("a").Build(),
		vip("b").Build(), kube.EndpointSlice("a").Endpoint("10.1.0.1").Build(), kube.ServiceCIDR("kubernetes")}, nil))
	a, b := get(t, c, "a"), get(t, c, "b")
	assert.Equal(t, "r1", a.Labels[runLabel])
	assert.Equal(t, "192.0.2.1", a.Status.LoadBalancer.Ingress[0].IP)
	assert.Equal(t, []int32{firstHealthPort, firstHealthPort + 1},
		[]int32{a.Spec.HealthCheckNodePort, b.Spec.HealthCheckNodePort})
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "10.0.0.1", node.Status.Addresses[0].Address)
	assert.ElementsMatch(t, []string{"Node n1", "Service default/a", "Service default/b", "EndpointSlice default/a-ipv4"},
		left(t, c), "the run's ServiceCIDR serves the suite's")

	// A change, and a VIP that goes.
	require.NoError(t, s.Put(t.Context(), []metav1.Object{vip("b").Port("more", 81).Build(),
		kube.Service("a").Port("http", 80).Build()}, nil))
	assert.Empty(t, get(t, c, "a").Status.LoadBalancer.Ingress)
	assert.Len(t, get(t, c, "b").Spec.Ports, 2)
	assert.EqualValues(t, firstHealthPort+1, get(t, c, "b").Spec.HealthCheckNodePort)

	// Objects deleted by others are created again, and can be deleted twice.
	require.NoError(t, api.Delete(kube.Service("a").Build()))
	require.NoError(t, s.Put(t.Context(), []metav1.Object{kube.Service("a").Port("http", 82).Build()},
		[]metav1.Object{kube.Service("b").Build(), kube.Service("b").Build()}))
	assert.EqualValues(t, 82, get(t, c, "a").Spec.Ports[0].Port)

	err = s.Put(t.Context(), []metav1.Object{kube.Service("old").Created(time.Unix(1000, 0)).Build()}, nil)
	var refused *program.RefusedError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, "Service default/old", refused.Object)

	s.relay = testkit.NewRelay(closedListener(t), "tcp", "127.0.0.1:1", nil)
	s.close()
	assert.Empty(t, left(t, c))
}

// allocates lets Services have a cluster IP and a node port only if no other one has it, and lets none change its
// cluster IP, as a real API server.
func allocates(t *testing.T, c *cluster, w *way) {
	w.set(func(r *http.Request, body []byte) (*http.Response, error) {
		if r.Method != http.MethodPost && r.Method != http.MethodPut || strings.HasSuffix(r.URL.Path, "/status") {
			return nil, nil
		}
		var svc corev1.Service
		require.NoError(t, json.Unmarshal(body, &svc))
		w.set(nil)
		list, err := c.client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		allocates(t, c, w)
		for _, other := range list.Items {
			same := other.Name == svc.Name
			if same != (other.Spec.ClusterIP == svc.Spec.ClusterIP) {
				return status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, svc.Name+" is invalid"), nil
			}
		}
		return nil, nil
	})
}

// Cluster IPs move between Services in one wave, in a circle too.
func TestAddressesThatMove(t *testing.T) {
	c, w := clusterOn(t, newAPI(t), "r1")
	s := storeOf(c)
	at := func(name, ip string) metav1.Object { return kube.Service(name).ClusterIP(ip).Build() }
	allocates(t, c, w)
	before := []metav1.Object{at("a", "10.0.0.1"), at("b", "10.0.0.2"), at("c", "10.0.0.3")}
	require.NoError(t, s.Put(t.Context(), before, nil))
	require.NoError(t, s.Put(t.Context(), []metav1.Object{at("a", "10.0.0.2"), at("b", "10.0.0.1"), at("d", "10.0.0.3")},
		[]metav1.Object{at("c", "10.0.0.3")}))
	for name, ip := range map[string]string{"a": "10.0.0.2", "b": "10.0.0.1", "d": "10.0.0.3"} {
		assert.Equal(t, ip, get(t, c, name).Spec.ClusterIP, name)
	}
	err := s.Put(t.Context(), []metav1.Object{at("e", "10.0.0.2")}, nil)
	var refused *program.RefusedError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, "the API server refuses Service default/e: e is invalid", refused.Error())
}

// After an object that the API server refuses, the others are still written.
func TestAnObjectThatIsRefusedInTheMiddle(t *testing.T) {
	for code, reason := range map[int]metav1.StatusReason{
		http.StatusUnprocessableEntity: metav1.StatusReasonInvalid, http.StatusForbidden: metav1.StatusReasonForbidden,
		http.StatusBadRequest: metav1.StatusReasonBadRequest,
	} {
		c, w := clusterOn(t, newAPI(t), "r1")
		s := storeOf(c)
		w.set(func(r *http.Request, body []byte) (*http.Response, error) {
			if r.Method == http.MethodPost && strings.Contains(string(body), `"name":"b"`) {
				return status(code, reason, "not b"), nil
			}
			return nil, nil
		})
		err := s.Put(t.Context(), []metav1.Object{kube.Service("a").Build(), kube.Service("b").Build(),
			kube.Service("c").Build()}, nil)
		var refused *program.RefusedError
		require.ErrorAs(t, err, &refused, reason)
		assert.Equal(t, "Service default/b", refused.Object)
		assert.NoError(t, s.Disturbed(), "a refusal is no outage")
		assert.ElementsMatch(t, []string{"Service default/a", "Service default/c"}, left(t, c))
	}
}

// A request whose answer is lost is sent again, and does no harm twice.
func TestAnAPIServerThatGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w := clusterOn(t, newAPI(t), "r1")
		s := storeOf(c)
		requests := 0
		w.set(func(*http.Request, []byte) (*http.Response, error) {
			switch requests++; requests % 5 {
			case 1: // the server has done what it should, but nobody hears of it
				return nil, errors.New("connection reset by peer")
			case 2:
				return status(http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcd is away"), nil
			}
			return nil, nil
		})
		require.NoError(t, s.Put(t.Context(), []metav1.Object{kube.Service("a").Build(), kube.Node("n").Build()}, nil))
		require.NoError(t, s.Put(t.Context(), nil, []metav1.Object{kube.Service("a").Build()}))
		w.set(nil)
		assert.Equal(t, []string{"Node n"}, left(t, c))
		assert.Error(t, s.Disturbed())
	})
}

// If the API server refuses all writes, as with a webhook that is down, that is an outage, which ends a case.
func TestAnAPIServerThatFailsForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w := clusterOn(t, newAPI(t), "r1")
		w.set(func(r *http.Request, _ []byte) (*http.Response, error) {
			if r.Method == http.MethodGet {
				return nil, nil
			}
			return status(http.StatusInternalServerError, metav1.StatusReasonInternalError, "failed calling webhook"), nil
		})
		s, began := storeOf(c), time.Now()
		err := s.Put(t.Context(), []metav1.Object{kube.Service("a").Build()}, nil)
		require.ErrorContains(t, err, "write Service default/a")
		assert.ErrorContains(t, err, "failed calling webhook")
		require.ErrorContains(t, s.Put(t.Context(), nil, []metav1.Object{kube.Node("n").Build()}), "delete Node n")
		assert.InDelta(t, 2*goneTimeout, time.Since(began), float64(time.Second))
		assert.ErrorContains(t, s.Disturbed(), "failed calling webhook")
	})
}

// Somebody may write to an object between its two parts, such as a proxy that annotates its Node.
func TestAnObjectThatOthersWriteTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		c, w := clusterOn(t, api, "r1")
		conflicts := 0
		w.set(func(r *http.Request, _ []byte) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/status") && conflicts < 2 {
				conflicts++
				return status(http.StatusConflict, metav1.StatusReasonConflict, "it has been modified"), nil
			}
			return nil, nil
		})
		s := storeOf(c)
		require.NoError(t, s.Put(t.Context(), []metav1.Object{kube.Node("n").InternalIP("10.0.0.1").Build()}, nil))
		assert.Equal(t, 2, conflicts)
		assert.NoError(t, s.Disturbed(), "that is no outage")
		node, err := c.client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Len(t, node.Status.Addresses, 1)
	})
}

// Somebody else's object is not touched, even if it has the name of one of the suite.
func TestAnObjectOfSomebodyElse(t *testing.T) {
	api := newAPI(t, kube.Service("web").Port("theirs", 1).Build())
	c, _ := clusterOn(t, api, "r1")
	err := storeOf(c).Put(t.Context(), []metav1.Object{kube.Service("web").Port("ours", 2).Build()}, nil)
	assert.ErrorContains(t, err, "the cluster has a Service default/web")
	assert.Equal(t, "theirs", get(t, c, "web").Spec.Ports[0].Name)
}
