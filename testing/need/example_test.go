package need_test

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// A test that makes network namespaces skips for other users, and fails instead where KPL_REQUIRE=1 says that nothing
// may be skipped.
func ExampleRoot() {
	_ = func(t *testing.T) {
		need.Root(t)
		need.Program(t, "nft")
		// ... the test
	}
}
