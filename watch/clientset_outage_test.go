package watch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
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

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
)

// away is the transport to a server that may be away.
type away struct {
	http.RoundTripper
	is atomic.Bool
	// err is what requests to it end with.
	err error
}

func (a *away) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.is.Load() {
		return nil, a.err
	}
	return a.RoundTripper.RoundTrip(r)
}

// An unreachable server is logged at once and then rarely, whatever the cause.
func TestAnAPIServerThatIsAwayIsNamed(t *testing.T) {
	for name, err := range map[string]error{
		"refused": &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
		"no name": &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "api"}},
		"EOF":     io.EOF,
		"timeout": &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded},
		"TLS":     &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
	} {
		t.Run(name, func(t *testing.T) { testOutage(t, err) })
	}
}

func testOutage(t *testing.T, cause error) {
	synctest.Test(t, func(t *testing.T) {
		config := newAPIServer(t, service("a")).Config()
		server := &away{RoundTripper: config.Transport, err: cause}
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
		if errors.Is(cause, os.ErrDeadlineExceeded) || errors.Is(cause, io.EOF) {
			time.Sleep(time.Minute) // client-go tries ten times, and treats it as the end of a watch
			assert.Contains(t, logs(), errNothingSent.Error())
		} else {
			assert.Contains(t, logs(), config.Host+"/api")
			assert.Contains(t, logs(), cause.Error())
		}
		assert.Equal(t, 1, lines(), "at once, for all kinds of objects")
		time.Sleep(time.Hour)
		assert.LessOrEqual(t, lines(), 14)
		assert.GreaterOrEqual(t, lines(), 10)
		assert.NotContains(t, logs(), "Failed to list and watch")
		assert.NotContains(t, logs(), "A streamed list does not end")
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

// An error that the server returns for a kind of object is logged for each kind, and again every five minutes.
func TestOtherErrorsAreNotAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, logs := testLogger(t)
		f := failures{outage: &outage{}}
		f.outage.note(logger, errors.New("malformed"))
		f.outage.note(logger, nil)
		f.note(logger, context.Canceled)
		assert.Contains(t, logs(), "Failed to list and watch")
		before := len(logs())
		f.note(logger, nil)
		f.note(logger, context.Canceled)
		assert.Len(t, logs(), before)
		f.note(logger, errors.New("malformed"))
		assert.Greater(t, len(logs()), before)
		before = len(logs())
		time.Sleep(4 * time.Minute)
		f.note(logger, errors.New("malformed"))
		assert.Len(t, logs(), before)
		time.Sleep(time.Minute)
		f.note(logger, errors.New("malformed"))
		assert.Greater(t, len(logs()), before)
		assert.NotContains(t, logs(), "cannot be reached")
	})
}

// A proxy that closes connections before anything was sent prevents streamed lists, but not plain ones.
func TestAStreamThatIsClosedAtOnceIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newAPIServer(t, service("a"))
		server.SetFaults(func(_ context.Context, r apiserver.Request) apiserver.Fault {
			if r.StreamsList() {
				return apiserver.Fault{Err: io.EOF}
			}
			return apiserver.Fault{}
		})
		r := newRecorder(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- newClientset(t, server.client(), ClientsetOptions{}).Run(ctx, "n1", r) }()
		time.Sleep(5 * time.Minute)
		r.waitSynced()
		r.waitFor("services default/a")
		cancel()
		require.NoError(t, <-done)
	})
}
