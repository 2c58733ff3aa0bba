//go:build !linux

package conformance

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// Test runs the suite against a backend. It needs Linux: here it skips.
func Test(t *testing.T, f Factory) {
	t.Helper()
	need.That(t, false, "Linux, for network namespaces")
}
