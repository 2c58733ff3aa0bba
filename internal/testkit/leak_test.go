package testkit

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestAGoroutineThatDoesNotEndIsFound(t *testing.T) {
	before := goleak.IgnoreCurrent()
	started, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		close(started)
		<-end
	}()
	<-started
	assert.ErrorContains(t, findLeak(0, before), "TestAGoroutineThatDoesNotEndIsFound")
	close(end)
	<-ended
	NoLeak(t, before)
}

func TestIdleConnectionsOfTheSharedTransportAreNoLeak(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	before := goleak.IgnoreCurrent()
	response, err := http.Get(server.URL)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	NoLeak(t, before)
}
