package cluster

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// Build builds programs of this repository's folder cmd with the modules that releases have, and returns the folder
// that they are in. The caller's package is in a folder of testing/integration.
func Build(t testing.TB, names ...string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	args := []string{"build", "-modfile=cmd/programs.mod", "-o", folder}
	for _, name := range names {
		args = append(args, "./cmd/"+name)
	}
	build := exec.CommandContext(t.Context(), "go", args...)
	build.Dir, build.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "go build: %s", out)
	return folder
}
