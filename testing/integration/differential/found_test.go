package differential

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFound runs the scripts in testdata/found: each has found a fault in localstate.
func TestFound(t *testing.T) {
	files, err := filepath.Glob("testdata/found/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			sc, err := parseScript(string(text))
			require.NoError(t, err)
			require.NotEmpty(t, sc.waves)
			if !sc.setup.Malformed {
				require.NoError(t, invalid(sc), "an API server would not let this happen")
			}
			check(t, sc, "go test -run TestFound .")
		})
	}
}
