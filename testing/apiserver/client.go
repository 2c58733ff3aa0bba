package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/rest"
)

// Kubeconfig returns a kubeconfig file for the server at a URL, with the administrator's name and no credentials.
func Kubeconfig(url string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q}}]
users: [{name: admin, user: {}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
`, url)
}

// Config returns the configuration of clients that call the server in this process without a network, so they work in a
// bubble of testing/synctest. They are not throttled.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: "http://apiserver", Transport: transport{s}, QPS: -1}
}

// transport calls a server in this process.
type transport struct{ s *Server }

// RoundTrip implements [http.RoundTripper].
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	r = r.Clone(ctx)
	if r.Body == nil {
		r.Body = http.NoBody
	}
	body, w := io.Pipe()
	a := &answer{header: http.Header{}, body: w, begun: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		defer context.AfterFunc(ctx, func() { _ = w.CloseWithError(context.Cause(ctx)) })()
		err := t.s.serve(a, r)
		_ = r.Body.Close()
		ended <- err
		_ = w.CloseWithError(err)
	}()
	select {
	case <-a.begun:
	case err := <-ended:
		if err != nil && a.code == 0 {
			return nil, err
		}
	}
	return &http.Response{StatusCode: a.code, Status: http.StatusText(a.code), Proto: "HTTP/1.1", ProtoMajor: 1,
		ProtoMinor: 1, Header: a.header, Body: answerBody{body, cancel}, ContentLength: -1, Request: r}, nil
}

// answer is the [http.ResponseWriter] of a transport.
type answer struct {
	header http.Header
	code   int
	body   *io.PipeWriter
	begun  chan struct{} // closed when header and code are complete
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(code int) {
	if a.code == 0 {
		a.code = code
		a.header = a.header.Clone()
		close(a.begun)
	}
}

func (a *answer) Write(data []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(data)
}

// Flush implements [http.Flusher]. Nothing is buffered.
func (a *answer) Flush() {}

// answerBody ends the request when it is closed.
type answerBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b answerBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}
