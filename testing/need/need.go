// Package need is for tests that need root, a kernel feature or a program. If the machine does not have it they skip,
// and say why. With KPL_REQUIRE=1 in the environment they fail instead, so that CI, which has everything, cannot lose a
// test silently.
package need

import (
	"os"
	"os/exec"
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

// Program needs an executable in PATH, and returns its path.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	That(t, err == nil, "the program "+name)
	return path
}
