package apiserver_test

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// waitTimeout is how long a test waits for what is expected.
const waitTimeout = time.Minute

// newServer returns a server, and the configuration of clients that reach it by HTTP.
func newServer(t *testing.T, objects ...metav1.Object) (*apiserver.Server, *rest.Config) {
	s, err := apiserver.New(objects...)
	require.NoError(t, err)
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	t.Cleanup(h.CloseClientConnections)
	return s, &rest.Config{Host: h.URL, QPS: -1, Timeout: 0}
}

func clientOf(t *testing.T, config *rest.Config) kubernetes.Interface {
	h, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(h.CloseIdleConnections)
	c, err := kubernetes.NewForConfigAndClient(config, h)
	require.NoError(t, err)
	return c
}

func set(t *testing.T, s *apiserver.Server, objects ...metav1.Object) {
	t.Helper()
	require.NoError(t, s.Set(objects...))
}

// withTimeout is the context of a test, for so long.
func withTimeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	t.Cleanup(cancel)
	return ctx
}

// requests counts the requests for a resource: lists, streamed lists and other watches.
func requests(s *apiserver.Server, resource string) (lists, streamed, watches int) {
	for _, r := range s.Requests() {
		switch {
		case r.Resource.Resource != resource:
		case r.Verb == "list":
			lists++
		case r.StreamsList():
			streamed++
		case r.Verb == "watch":
			watches++
		}
	}
	return lists, streamed, watches
}
