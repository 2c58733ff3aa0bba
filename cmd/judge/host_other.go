//go:build !linux

package main

import (
	"context"
	"errors"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// lockFolder does nothing: reports can be merged and shown here, but nothing can be run.
func lockFolder(string) (release func(), err error) { return func() {}, nil }

// open implements Proxy.Open. It needs Linux.
func (o *options) open(context.Context, program.Node, program.Configuration) (program.Host, error) {
	return nil, errors.New("the judge needs Linux, for network namespaces")
}
