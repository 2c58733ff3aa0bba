package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// A silent server answers nothing before it goes away. The next one has the objects.
func TestAnAPIServerThatIsSilent(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p, err := newInProcess(listener)
	require.NoError(t, err)
	defer func() { p.close() }()
	ask := func(ctx context.Context) string {
		w := httptest.NewRecorder()
		p.server.Handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/services", nil))
		return w.Body.String()
	}
	require.NoError(t, p.away())
	require.NoError(t, p.back(t.Context(), program.Silent))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	assert.PanicsWithValue(t, http.ErrAbortHandler, func() { ask(ended) })
	assert.Empty(t, p.api.Requests())
	require.NoError(t, p.away())
	require.NoError(t, p.back(t.Context(), program.LowerVersions))
	assert.Contains(t, ask(t.Context()), "ServiceList")
}
