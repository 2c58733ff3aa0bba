package watch

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// away is the transport to a server that may be away.
type away struct {
	http.RoundTripper
	is atomic.Bool
}

func (a *away) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.is.Load() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return a.RoundTripper.RoundTrip(r)
}

// A server that cannot be reached is named at once, and then rarely: client-go does not say it while it streams.
func TestAnAPIServerThatIsAwayIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := newAPIServer(t, service("a")).Config()
		server := &away{RoundTripper: config.Transport}
		server.is.Store(true)
		client, err := kubernetes.NewForConfig(&rest.Config{Host: config.Host, Transport: server, QPS: -1})
		require.NoError(t, err)
		logger, logs := testLogger(t)
		lines := func() int { return strings.Count(logs(), "The API server cannot be reached, or refuses") }
		r := newRecorder(t)
		ctx, cancel := context.WithCancel(contextWith(t, logger))
		done := make(chan error, 1)
		go func() { done <- newClientset(t, client, ClientsetOptions{}).Run(ctx, "n1", r) }()
		synctest.Wait()
		assert.Equal(t, 1, lines(), "at once, for all kinds of objects")
		assert.Contains(t, logs(), config.Host+"/api")
		time.Sleep(time.Hour)
		assert.LessOrEqual(t, lines(), 13)
		assert.GreaterOrEqual(t, lines(), 10)
		server.is.Store(false)
		time.Sleep(5 * time.Minute)
		before := lines()
		server.is.Store(true)
		time.Sleep(30 * time.Minute) // watches have ended by then
		assert.Greater(t, lines(), before)
		cancel()
		require.NoError(t, <-done)
	})
}

// Errors that end the reflector are logged there.
func TestOtherErrorsAreNotAnOutage(t *testing.T) {
	logger, logs := testLogger(t)
	var o outage
	o.note(logger, errors.New("unknown certificate authority"))
	o.note(logger, nil)
	assert.Empty(t, logs())
	o.note(logger, syscall.ECONNREFUSED)
	assert.NotEmpty(t, logs())
}
