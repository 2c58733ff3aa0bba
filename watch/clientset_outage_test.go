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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
)

// away is the transport to a server that may be away.
type away struct {
	http.RoundTripper
	is atomic.Bool
	// err is what requests to it end with, and after how long they do.
	err   error
	after time.Duration
}

func (a *away) RoundTrip(r *http.Request) (*http.Response, error) {
	if !a.is.Load() {
		return a.RoundTripper.RoundTrip(r)
	}
	if a.after > 0 {
		select {
		case <-time.After(a.after):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return nil, a.err
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

// Packets that are dropped: client-go waits 30 seconds for each of its eleven connections, and a load balancer that
// accepts them makes it wait ten seconds for the TLS handshake.
func TestAnAPIServerThatDoesNotAnswerIsNamed(t *testing.T) {
	for name, wait := range map[string]time.Duration{"dropped": 30 * time.Second, "no handshake": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := newAPIServer(t, service("a")).Config()
				server := &away{RoundTripper: config.Transport, after: wait,
					err: &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}}
				server.is.Store(true)
				client, err := kubernetes.NewForConfig(&rest.Config{Host: config.Host, Transport: server, QPS: -1})
				require.NoError(t, err)
				stop, logs := startLogged(t, newClientset(t, client, ClientsetOptions{}), "n1", newRecorder(t))
				defer stop()
				time.Sleep(30 * time.Second)
				require.Len(t, outageLines(logs()), 1, "within half a minute, for all kinds of objects")
				time.Sleep(time.Hour)
				assert.LessOrEqual(t, len(outageLines(logs())), 14)
				assert.GreaterOrEqual(t, len(outageLines(logs())), 10)
				for _, line := range outageLines(logs()) {
					assert.Contains(t, line, `server="`+config.Host+`"`)
				}
				assert.NotContains(t, logs(), "A streamed list does not end")
			})
		})
	}
}

// outageLines returns the lines that say that a server cannot be reached.
func outageLines(logs string) (lines []string) {
	for line := range strings.Lines(logs) {
		if strings.Contains(line, "The API server cannot be reached, or refuses") {
			lines = append(lines, line)
		}
	}
	return lines
}

// A server that answers, but not in time, or that a load balancer answers for.
func TestAnAPIServerThatAnswersWithAServerErrorIsNamed(t *testing.T) {
	for name, refusal := range map[string]error{
		"429":            apierrors.NewTooManyRequests("too many requests", 0),
		"500":            apierrors.NewInternalError(errors.New("no leader")),
		"server timeout": apierrors.NewServerTimeout(schema.GroupResource{}, "list", 0),
		"502":            apierrors.NewGenericServerResponse(502, "get", schema.GroupResource{}, "", "<html>", 0, true),
		"503":            apierrors.NewServiceUnavailable("the server is currently unable to handle the request"),
		"504":            apierrors.NewTimeoutError("no answer", 0),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newAPIServer(t, service("a"))
				server.setRefuse(func(apiserver.Request) error { return refusal })
				r := newRecorder(t)
				stop, logs := startLogged(t, newClientset(t, server.client(), ClientsetOptions{}), "n1", r)
				defer stop()
				time.Sleep(4 * time.Minute)
				require.Len(t, outageLines(logs()), 1, "for all kinds")
				assert.Contains(t, outageLines(logs())[0], `server="`+server.Config().Host+`"`)
				assert.NotContains(t, logs(), "Failed to list and watch")
				server.setRefuse(nil)
				r.waitSynced()
			})
		})
	}
}

// A replica that lags behind is no outage: client-go asks without a version then.
func TestAServerThatLagsBehindIsNoOutage(t *testing.T) {
	err := apierrors.NewTimeoutError("Too large resource version", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	assert.False(t, isOutage(err))
}

// A client without a server, such as client-go's fake, has no URL.
func TestAFakeClientHasNoServer(t *testing.T) {
	assert.Empty(t, serverOf(fake.NewClientset().CoreV1().RESTClient()))
	assert.Empty(t, serverOf(nil))
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
			assert.Contains(t, outageLines(logs())[0], `server="`+config.Host+`"`)
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
