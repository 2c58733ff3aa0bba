package watch

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
)

// roundTripper is a transport that is a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// streams is a server whose streams the test writes.
type streams struct {
	t    *testing.T
	next chan *io.PipeWriter
}

func (s *streams) RoundTrip(*http.Request) (*http.Response, error) {
	r, w := io.Pipe()
	s.next <- w
	return &http.Response{StatusCode: http.StatusOK, Body: r}, nil
}

// list requests a streamed list, and reads it to its end.
func (s *streams) list(rt http.RoundTripper, query string) (*io.PipeWriter, io.Closer, <-chan error) {
	logger, _ := testLogger(s.t)
	r, err := http.NewRequestWithContext(klog.NewContext(s.t.Context(), logger), http.MethodGet,
		"https://example.com/api/v1/services?sendInitialEvents=true&watch=true"+query, nil)
	require.NoError(s.t, err)
	answer, err := rt.RoundTrip(r) //nolint:bodyclose // the callers do, or it ends by itself
	if err != nil {
		return nil, nil, nil
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, answer.Body)
		ended <- err
	}()
	return <-s.next, answer.Body, ended
}

func withStreams(t *testing.T, f func(s *streams, rt http.RoundTripper)) {
	synctest.Test(t, func(t *testing.T) {
		s := &streams{t, make(chan *io.PipeWriter, 1)}
		f(s, ListFallback(s))
	})
}

func send(t *testing.T, w io.Writer, text string) {
	t.Helper()
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
}

const endOfList = `{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}`

func TestInformersListsThatAreQuietAreGivenUp(t *testing.T) {
	withStreams(t, func(s *streams, rt http.RoundTripper) {
		begin := time.Now()
		w, _, ended := s.list(rt, "")
		time.Sleep(20 * time.Second) // virtual
		send(t, w, "an object")
		require.NoError(t, <-ended, "the end of a stream, not an error")
		assert.Equal(t, 50*time.Second, time.Since(begin))
		w, _, _ = s.list(rt, "")
		assert.Nil(t, w, "client-go has to list")
		w, body, _ := s.list(rt, "&labelSelector=a")
		assert.NotNil(t, w, "another list")
		require.NoError(t, body.Close())
	})
}

// In a busy cluster changes follow the list all the time.
func TestInformersListsThatAreBusyAreGivenUp(t *testing.T) {
	withStreams(t, func(s *streams, rt http.RoundTripper) {
		begin := time.Now()
		w, _, ended := s.list(rt, "")
		var err error
		for err == nil && time.Since(begin) < time.Hour {
			_, err = io.WriteString(w, "a change")
			time.Sleep(time.Second) // virtual
		}
		require.NoError(t, <-ended)
		assert.InDelta(t, streamMost, time.Since(begin), float64(2*time.Second)) // virtual
	})
}

// The bookmark is found wherever the reads divide it, and the stream then lasts.
func TestInformersListsThatAreCompleteAreNotGivenUp(t *testing.T) {
	for at := range len(endOfList) {
		withStreams(t, func(s *streams, rt http.RoundTripper) {
			w, body, ended := s.list(rt, "")
			send(t, w, "an object")
			for i := range at {
				send(t, w, endOfList[i:i+1]) // a byte at a time
			}
			send(t, w, endOfList[at:])
			time.Sleep(time.Hour) // virtual
			send(t, w, "a change")
			require.NoError(t, body.Close())
			require.ErrorIs(t, <-ended, io.ErrClosedPipe)
			w, body, _ = s.list(rt, "")
			require.NotNil(t, w, "the next one is streamed, too")
			require.NoError(t, body.Close())
		})
	}
}

func TestInformersListsThatBreakOffAreGivenUp(t *testing.T) {
	withStreams(t, func(s *streams, rt http.RoundTripper) {
		breakOff := func() {
			w, _, ended := s.list(rt, "")
			require.NoError(t, w.CloseWithError(io.ErrUnexpectedEOF))
			require.ErrorIs(t, <-ended, io.ErrUnexpectedEOF)
		}
		breakOff()
		breakOff()
		w, body, _ := s.list(rt, "")
		send(t, w, endOfList)
		synctest.Wait()
		require.NoError(t, body.Close())
		breakOff()
		breakOff()
		for range maxIncomplete { // not broken off, but not wanted any longer
			_, body, _ = s.list(rt, "")
			require.NoError(t, body.Close())
		}
		breakOff()
		w, _, _ = s.list(rt, "")
		assert.Nil(t, w, "after three in a row")
	})
}

func TestListFallbackLeavesOtherRequestsAlone(t *testing.T) {
	body := io.NopCloser(nil)
	status, failure := http.StatusOK, error(nil)
	rt := ListFallback(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Body: body}, failure
	}))
	answer := func(query string) io.ReadCloser {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com/api/v1/services"+query, nil)
		require.NoError(t, err)
		a, err := rt.RoundTrip(r)
		require.ErrorIs(t, err, failure)
		return a.Body
	}
	assert.Equal(t, body, answer(""))
	assert.Equal(t, body, answer("?watch=true"))
	status = http.StatusUnprocessableEntity
	assert.Equal(t, body, answer("?watch=true&sendInitialEvents=true"), "a server that does not stream lists")
	failure = errors.New("away")
	answer("?watch=true&sendInitialEvents=true")
}
