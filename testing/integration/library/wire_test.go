package library_test

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// wire records a client's requests to the API server, and all answers. Names appear in it literally, in JSON and in
// protobuf.
type wire struct {
	next http.RoundTripper

	mu       sync.Mutex
	asked    []*url.URL
	answered []*url.URL // those of them that succeeded
	came     bytes.Buffer
}

// recordedClient returns a client and its recorder. Changes to the configuration have to be made before.
func recordedClient(t *testing.T, config *rest.Config) (kubernetes.Interface, *wire) {
	w := &wire{}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		w.next = next
		return w
	})
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client, w
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.asked = append(w.asked, r.URL)
	w.mu.Unlock()
	response, err := w.next.RoundTrip(r)
	if err == nil {
		if response.StatusCode == http.StatusOK {
			w.mu.Lock()
			w.answered = append(w.answered, r.URL)
			w.mu.Unlock()
		}
		response.Body = recordedBody{w, response.Body}
	}
	return response, err
}

// holds reports whether a text was received.
func (w *wire) holds(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Contains(w.came.Bytes(), []byte(text))
}

// selectors returns the label and field selectors of the requests for a resource, each once.
func (w *wire) selectors(resource string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, u := range w.asked {
		if strings.HasSuffix(u.Path, "/"+resource) {
			all = append(all, u.Query().Get("labelSelector")+" "+u.Query().Get("fieldSelector"))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// lists counts the requests for all objects of a resource, in one answer or as a stream.
func (w *wire) lists(resource string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range w.asked {
		q := u.Query()
		if strings.HasSuffix(u.Path, "/"+resource) && (!q.Has("watch") || q.Get("sendInitialEvents") == "true") {
			n++
		}
	}
	return n
}

// questions counts the requests for the current version of a resource that were answered.
func (w *wire) questions(resource string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range w.answered {
		if strings.HasSuffix(u.Path, "/"+resource) && u.Query().Get("limit") == "1" {
			n++
		}
	}
	return n
}

type recordedBody struct {
	w *wire
	io.ReadCloser
}

func (b recordedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	b.w.came.Write(p[:n])
	return n, err
}
