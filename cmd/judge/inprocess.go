package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// objects are the objects of a node's cluster, in an API server that the proxy reaches on the node.
type objects interface {
	// Put and Requests are methods of [program.Host].
	Put(ctx context.Context, set, deleted []metav1.Object) error
	Requests() string
	// Disturbed returns an error if the API server was unreachable since the last call.
	Disturbed() error
	// client returns the API server's URL on the node, and a kubeconfig file for it.
	client() (url string, kubeconfig []byte)
	// close removes the objects and stops their server.
	close()
}

// inProcess is an API server in this process, with the objects of one node's cluster.
type inProcess struct {
	api    *apiserver.Server
	server *http.Server
	// serving ends when the server has closed its listener.
	serving sync.WaitGroup
	// url is that of the server, and address where it listens.
	url, address string
}

func newInProcess(listener net.Listener) (*inProcess, error) {
	api, err := apiserver.New()
	if err != nil {
		return nil, err
	}
	p := &inProcess{api: api, url: "http://" + listener.Addr().String(), address: listener.Addr().String()}
	p.serve(listener, api)
	return p, nil
}

func (p *inProcess) serve(listener net.Listener, h http.Handler) {
	p.server = &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	s := p.server
	p.serving.Go(func() { _ = s.Serve(listener) }) // returns after close
}

// silence answers no request, until its connection ends, which net/http notices once the body is read.
func silence(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// away ends all connections and refuses new ones, until back.
func (p *inProcess) away() error {
	err := p.server.Close()
	p.serving.Wait()
	return err
}

func (p *inProcess) back(ctx context.Context, r program.Return) error {
	var h http.Handler = p.api
	switch r {
	case program.HistoryGone:
		p.api.Compact()
	case program.LowerVersions:
		p.api.Restore()
	case program.Silent:
		h = http.HandlerFunc(silence)
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", p.address)
	if err == nil {
		p.serve(listener, h)
	}
	return err
}

// Put implements objects.
func (p *inProcess) Put(_ context.Context, set, deleted []metav1.Object) error {
	return errors.Join(p.api.Set(set...), p.api.Delete(deleted...))
}

// Requests implements objects.
func (p *inProcess) Requests() string {
	var list []string
	seen := map[string]bool{}
	for _, r := range p.api.Requests() {
		if text := r.String(); !seen[text] {
			seen[text] = true
			list = append(list, text)
		}
	}
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
}

// Disturbed implements objects.
func (p *inProcess) Disturbed() error { return nil }

func (p *inProcess) client() (url string, kubeconfig []byte) {
	return p.url, []byte(apiserver.Kubeconfig(p.url))
}

func (p *inProcess) close() { _ = p.server.Close() }
