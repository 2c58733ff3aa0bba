package page

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// A browser gets two messages a second, however often there is a Sync.
func TestABrowserIsNotSentEachSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, Options{})
		s := service("web", 1, false)
		r.sink.SetService(s)
		targets := []*model.Endpoint{endpoint(s, "10.90.0.1:8080", cluster), endpoint(s, "10.90.0.2:8080", cluster)}
		ctx, leave := context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/api/events", nil))
		}()
		for n := range 1000 {
			r.sink.DeleteEndpoint(targets[n%2].Key())
			r.sink.SetEndpoint(targets[(n+1)%2])
			r.apply()
			time.Sleep(10 * time.Millisecond)
		}
		leave()
		<-done
		assert.InDelta(t, 20, strings.Count(w.Body.String(), "data: "), 1)
	})
}

// An error of thousands of service ports is looked at once, not at each Sync.
func TestAnErrorThatStaysStaysShown(t *testing.T) {
	s := service("web", 1, false)
	refused := &sink.PortError{Port: s.PortName(s.Ports[0]), Family: model.IPv4, Err: errors.New("refused")}
	b := &backend{err: refused}
	r := newRig(t, b, Options{})
	r.sink.SetService(s)
	r.sink.SetEndpoint(endpoint(s, "10.90.0.1:8080", cluster))
	sync := func() *pageState {
		_ = r.sink.Sync(t.Context())
		return get[pageState](r, "/api/state")
	}
	first := sync()
	require.Equal(t, 1, first.Failing)
	allocations := testing.AllocsPerRun(10, func() { _ = r.sink.Sync(t.Context()) })
	var many []error
	for range 1000 {
		many = append(many, refused)
	}
	b.err = errors.Join(many...)
	sync()
	assert.Equal(t, allocations, testing.AllocsPerRun(10, func() { _ = r.sink.Sync(t.Context()) }))
	again := sync()
	assert.Equal(t, 1, again.Failing)
	assert.Contains(t, again.Sync.Error, "refused")
	assert.True(t, again.Sync.At.After(first.Sync.At))
	assert.Equal(t, "failing", string(again.Problems.First[0].Status))

	b.err = errors.New("no kernel")
	assert.True(t, sync().Sync.Failed)
	b.err = nil
	gone := sync()
	assert.Zero(t, gone.Failing)
	assert.Empty(t, gone.Sync.Error)
	assert.False(t, gone.Sync.Failed)
}
