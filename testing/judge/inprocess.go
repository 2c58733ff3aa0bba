package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
)

// objects are those of a node's cluster, in an API server that the proxy reaches on the node.
type objects interface {
	// Put and Requests are those of [conformance.Host].
	Put(ctx context.Context, set, deleted []metav1.Object) error
	Requests() string
	// Disturbed returns an error if the API server could not be reached since it was called last.
	Disturbed() error
	// client returns the URL of the API server on the node, and a kubeconfig file for it.
	client() (url string, kubeconfig []byte)
	// close removes the objects, and ends what serves them.
	close()
}

// inProcess is an API server in this process, with the objects of one node's cluster.
type inProcess struct {
	api    *apiserver.Server
	server *http.Server
	url    string
}

func newInProcess(listener net.Listener) (*inProcess, error) {
	api, err := apiserver.New()
	if err != nil {
		return nil, err
	}
	p := &inProcess{api: api, server: &http.Server{Handler: api, ReadHeaderTimeout: time.Minute},
		url: "http://" + listener.Addr().String()}
	go func() { _ = p.server.Serve(listener) }() // until close
	return p, nil
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
