package testkit

import (
	"os"
	"testing"
)

// Need skips the test unless ok, or fails it with KPL_REQUIRE=1. what says what the test needs.
func Need(t testing.TB, ok bool, what string) {
	t.Helper()
	Uncached()
	switch {
	case ok:
	case os.Getenv("KPL_REQUIRE") == "1":
		t.Fatalf("needs %s, and KPL_REQUIRE=1 does not allow skipping", what)
	default:
		t.Skipf("needs %s", what)
	}
}

// Uncached makes go test forget the result of a test binary in CI, where KPL_RUN names the run: it would notice neither
// that a program or the kernel is another one, nor what a program that the test starts has read.
func Uncached() { _ = os.Getenv("KPL_RUN") }

// NeedRoot requires user ID 0, also that of a user namespace.
func NeedRoot(t testing.TB) {
	t.Helper()
	Need(t, os.Geteuid() == 0, "root (try: unshare -rn)")
}
