//go:build !linux

package conformance

import (
	"context"
	"errors"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/judge"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// Test runs the suite against a backend. It needs Linux: here it skips.
func Test(t *testing.T, f Factory) {
	t.Helper()
	need.That(t, false, "Linux, for network namespaces")
}

// Random compares a backend with the oracle in random states. It needs Linux: here it skips.
func Random(t *testing.T, f Factory, seed uint64, n int) {
	t.Helper()
	need.That(t, false, "Linux, for network namespaces")
}

// Judge runs the suite against a program. It needs Linux: here it fails.
func Judge(context.Context, judge.Proxy, judge.Options) (*report.Report, error) {
	return nil, errors.New("the judge needs Linux, for network namespaces")
}

// Compare compares two programs in random clusters. It needs Linux: here it fails.
func Compare(context.Context, [2]judge.Proxy, judge.CompareOptions) (*report.Report, error) {
	return nil, errors.New("the judge needs Linux, for network namespaces")
}

// Do calls f on a thread that is in the network namespace of the node. It needs Linux.
func (e Env) Do(f func() error) error { return errors.New("network namespaces need Linux") }
