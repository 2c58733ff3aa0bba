// Package need is for tests that need root, a kernel feature or a program. If the machine does not have it they skip,
// and say why and what to install. With KPL_REQUIRE=1 in the environment they fail instead, so that CI, which has
// everything, cannot lose a test silently.
package need

import (
	_ "embed"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/testneed"
)

// That ends the test unless ok: as skipped, or with KPL_REQUIRE=1 as failed. what says what is needed.
func That(t testing.TB, ok bool, what string) {
	t.Helper()
	testneed.That(t, ok, what)
}

// Root needs user ID 0, which may be that of a user namespace.
func Root(t testing.TB) {
	t.Helper()
	testneed.Root(t)
}

// Program needs an executable, and returns its path. name is looked for in PATH, unless it is a path itself.
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

// Find looks for an executable like [Program]. It is for what a test can do without, in another way.
func Find(name string) (path string, found bool) {
	path, err := exec.LookPath(name)
	return path, err == nil
}

// programs has a line for each program that the tests of this repository need: its name, and the Debian package that
// it is in. It is a file so that .ci/hidden can read it as well.
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
