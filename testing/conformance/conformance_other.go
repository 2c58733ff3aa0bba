//go:build !linux

package conformance

import (
	"errors"
	"testing"

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

// Do calls f on a thread that is in the network namespace of the node. It needs Linux.
func (e Env) Do(f func() error) error { return errors.New("network namespaces need Linux") }
