// Package need is for tests that need something of the machine that they run on: root, a kernel feature, a program.
// Where it is missing they skip, and say why. With KPL_REQUIRE=1 in the environment they fail instead, so that a
// continuous integration that is meant to have everything cannot lose a test silently.
package need

import (
	"os"
	"os/exec"
	"testing"
)

// That goes on if ok, and otherwise ends the test as skipped, or as failed with KPL_REQUIRE=1. what says what is
// needed.
func That(t testing.TB, ok bool, what string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("KPL_REQUIRE") == "1":
		t.Fatalf("needs %s, and KPL_REQUIRE=1 forbids to skip", what)
	default:
		t.Skipf("needs %s", what)
	}
}

// Root needs user id 0, also that of a user namespace.
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
