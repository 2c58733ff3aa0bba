package dropin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"
)

func TestAServerTriesAnAddressAgainUntilItIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		start := time.Now()
		var tries []time.Duration
		s := &server{name: "metrics", address: "127.0.0.1:10249", handler: http.NotFoundHandler(),
			listen: func(context.Context, string, string) (net.Listener, error) {
				tries = append(tries, time.Since(start))
				if len(tries) == 3 {
					cancel()
				}
				return nil, errors.New("it is taken")
			},
		}
		require.NoError(t, s.run(ctx))
		assert.Equal(t, []time.Duration{0, bindRetry, 2 * bindRetry}, tries)
	})
}

// Two proxies on one node want the same ports: the one that does not get them says so.
func TestAPortInUseHintsAtAnotherProxy(t *testing.T) {
	s := &server{name: "metrics", address: "127.0.0.1:10249", handler: http.NotFoundHandler(), hardFail: true,
		listen: func(context.Context, string, string) (net.Listener, error) {
			return nil, &net.OpError{Op: "listen", Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
		}}
	assert.ErrorContains(t, s.run(t.Context()), "if this goes on: is another kube-proxy running on this node?")
}

// pipes is a listener whose connections are pipes, which keep to the time of a test.
type pipes struct {
	net.Listener
	connections chan net.Conn
	closed      func()
}

func newPipes() *pipes {
	p := &pipes{connections: make(chan net.Conn)}
	p.closed = sync.OnceFunc(func() { close(p.connections) })
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	if c, ok := <-p.connections; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p *pipes) Close() error {
	p.closed()
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.connections <- server
	return client
}

// A client that is slow, or does nothing at all, keeps its connection for a while only.
func TestConnectionsOfSlowClientsEnd(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: node\r\n"
	for _, forEverybody := range []bool{true, false} {
		for _, test := range []struct {
			name, request string
			reads         bool
			ends          time.Duration // of the connection
			health        bool          // only on the health server
		}{
			{name: "no request", reads: true, ends: requestTimeout},
			{name: "half a request", request: get, reads: true, ends: requestTimeout},
			{name: "a connection that is kept", request: get + "\r\n", reads: true, ends: idleTimeout},
			{name: "half a body", request: get + "Content-Length: 100\r\n\r\nhalf", reads: true, ends: requestTimeout,
				health: true},
			{name: "answers that are not read", request: strings.Repeat(get+"\r\n", 2), ends: requestTimeout, health: true},
		} {
			if test.health && !forEverybody {
				continue
			}
			t.Run(fmt.Sprintf("%s, for everybody: %v", test.name, forEverybody), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					listener := newPipes()
					s := &server{name: "health", handler: text("text/plain", strings.Repeat("x", 10_000)),
						forEverybody: forEverybody,
						listen:       func(context.Context, string, string) (net.Listener, error) { return listener, nil }}
					ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
					var wg sync.WaitGroup
					defer time.Sleep(time.Second) // net/http may keep the goroutine of a closed connection for half of it
					defer wg.Wait()
					defer cancel()
					wg.Go(func() { _ = s.run(ctx) })
					client := listener.dial()
					defer client.Close()
					start := time.Now()
					wg.Go(func() { _, _ = io.WriteString(client, test.request) })
					if !test.reads {
						time.Sleep(time.Hour)
						answers, err := io.ReadAll(client)
						require.NoError(t, err)
						assert.Empty(t, answers, "it was closed long ago")
						return
					}
					_, err := io.ReadAll(client)
					require.NoError(t, err)
					assert.InDelta(t, test.ends, time.Since(start), float64(time.Second))
				})
			})
		}
	}
}

// With --profiling the verbosity of the log can be changed while the program runs, as with kube-proxy.
func TestTheVerbosityCanBeSet(t *testing.T) {
	t.Cleanup(func() { _, _ = logs.GlogSetter("0") })
	ask := func(profiling bool, method, body string) int {
		t.Helper()
		handler := metricsOf(t, nil, fmt.Sprintf("--profiling=%v", profiling))
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(method, "/debug/flags/v", strings.NewReader(body)))
		return answer.Code
	}
	assert.Equal(t, http.StatusOK, ask(true, http.MethodPut, "7\n"))
	assert.True(t, klog.V(7).Enabled())
	assert.False(t, klog.V(8).Enabled())
	assert.Equal(t, http.StatusBadRequest, ask(true, http.MethodPut, "much"))
	assert.Equal(t, http.StatusBadRequest, ask(true, http.MethodPut, strings.Repeat("9", 100)))
	assert.Equal(t, http.StatusMethodNotAllowed, ask(true, http.MethodGet, ""))
	assert.Equal(t, http.StatusNotFound, ask(false, http.MethodPut, "9"))
	assert.True(t, klog.V(7).Enabled(), "it is as it was set")
}

// Kubernetes' feature gate NativeHistograms is on by default. Native histograms are in the protobuf format alone.
func TestTheGateNativeHistogramsChoosesTheFormat(t *testing.T) {
	const protobuf = "application/vnd.google.protobuf"
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"not given": {nil, protobuf},
		"on":        {[]string{"--feature-gates=NativeHistograms=true"}, protobuf},
		"off":       {[]string{"--feature-gates=NativeHistograms=false"}, "text/plain"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := askMetrics(t, metricsOf(t, nil, tc.args...), "/metrics",
				protobuf+";proto=io.prometheus.client.MetricFamily;encoding=delimited")
			assert.Equal(t, http.StatusOK, answer.Code)
			assert.Contains(t, answer.Header().Get("Content-Type"), tc.want)
			_, warnings, err := fromArgs(t, tc.args...)
			require.NoError(t, err)
			assert.Empty(t, warnings, "it has an effect")
		})
	}
}
