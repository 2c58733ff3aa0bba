// Package testneed skips tests where the machine lacks what they need: what packages below internal need of package
// testing/need, which has the documentation.
package testneed

import (
	"os"
	"testing"
)

// That ends the test unless ok: as skipped, or with KPL_REQUIRE=1 as failed. what says what is needed.
func That(t testing.TB, ok bool, what string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("KPL_REQUIRE") == "1":
		t.Fatalf("needs %s, and KPL_REQUIRE=1 does not allow skipping", what)
	default:
		t.Skipf("needs %s", what)
	}
}

// Root needs user ID 0, which may be that of a user namespace.
func Root(t testing.TB) {
	t.Helper()
	That(t, os.Geteuid() == 0, "root (try: unshare -rn)")
}
