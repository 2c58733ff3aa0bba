package prom_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/prom"
)

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRequestsAreCounted(t *testing.T) {
	requests := prom.NewRequests()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(requests)
	client := http.Client{Transport: requests.Wrap(transport(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/away" {
			return nil, errors.New("refused")
		}
		return &http.Response{StatusCode: http.StatusForbidden, Body: io.NopCloser(strings.NewReader(""))}, nil
	}))}
	for range 2 {
		resp, err := client.Get("http://192.0.2.1:6443/api")
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	_, err := client.Post("http://192.0.2.1:6443/away", "", nil) //nolint:bodyclose // there is none
	require.ErrorContains(t, err, "refused")
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP rest_client_requests_total Number of HTTP requests, partitioned by status code, method, and host.
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="403",host="192.0.2.1:6443",method="GET"} 2
rest_client_requests_total{code="<error>",host="192.0.2.1:6443",method="POST"} 1
`), "rest_client_requests_total"))
	n, err := testutil.GatherAndCount(registry, "rest_client_request_duration_seconds")
	require.NoError(t, err)
	assert.Equal(t, 2, n, "GET and POST")
}
