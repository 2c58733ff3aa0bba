package testkit

import (
	"os"
	"testing"
)

// Need skips the test unless ok, or fails it with KPL_REQUIRE=1. what says what the test needs.
func Need(t testing.TB, ok bool, what string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("KPL_REQUIRE") == "1":
		t.Fatalf("needs %s, and KPL_REQUIRE=1 does not allow skipping", what)
	default:
		t.Skipf("needs %s", what)
	}
}

// NeedRoot requires user ID 0, also that of a user namespace.
func NeedRoot(t testing.TB) {
	t.Helper()
	Need(t, os.Geteuid() == 0, "root (try: unshare -rn)")
}
