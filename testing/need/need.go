// Package need is for tests that need root, a kernel feature or a program. On a machine without it they skip, and say
// why and what to install. With KPL_REQUIRE=1 in the environment they fail instead, so that CI cannot lose a test
// silently.
package need

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// That skips the test unless ok, or fails it with KPL_REQUIRE=1. what names the thing that the test needs.
func That(t testing.TB, ok bool, what string) {
	t.Helper()
	testkit.Need(t, ok, what)
}

// Deep skips a test that only a release has to pass, unless KPL_DEEP=1 is in the environment, as in .ci/deep: one that
// takes long and repeats, more thoroughly, what other tests show. CONTRIBUTING.md has the table of what that is.
func Deep(t testing.TB) {
	t.Helper()
	if !IsDeep() {
		t.Skip("only before a release: KPL_DEEP=1 is not set")
	}
}

// IsDeep reports whether [Deep] lets tests run, for tests that otherwise try fewer cases.
func IsDeep() bool { return os.Getenv("KPL_DEEP") == "1" }

// IsRequired reports whether a test that lacks something must fail: see [That].
func IsRequired() bool { return os.Getenv("KPL_REQUIRE") == "1" }

// Root requires user ID 0, also that of a user namespace.
func Root(t testing.TB) {
	t.Helper()
	testkit.NeedRoot(t)
}

// Program requires an executable, and returns its path. It searches PATH for name, unless name is a path.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, found := Find(name)
	what := "the program " + name
	if pkg := packages()[filepath.Base(name)]; pkg != "" {
		what += " (Debian: apt-get install " + pkg + ")"
	}
	That(t, found, what)
	return path
}

// Find searches for an executable like [Program], for tests that have an alternative.
func Find(name string) (path string, found bool) {
	testkit.Uncached()
	path, err := exec.LookPath(name)
	return path, err == nil
}

// programs lists the programs that the tests of this repository need, one per line with its Debian package. It is a
// file so that .ci/hidden can read it too.
//
//go:embed programs
var programs string

// packages returns the Debian package of each known program.
func packages() map[string]string {
	known := map[string]string{}
	for line := range strings.Lines(programs) {
		if name, pkg, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			known[name] = pkg
		}
	}
	return known
}
