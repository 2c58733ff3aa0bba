package mynft_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// All Go code in docs/write-a-backend.md is taken from files that are compiled and tested.
func TestThePageQuotesRealCode(t *testing.T) {
	const root = "../../../.."
	page, err := os.ReadFile(filepath.Join(root, "docs/write-a-backend.md"))
	require.NoError(t, err)
	var sources string
	for _, pattern := range []string{"*.go", "../../example_test.go", filepath.Join(root, "examples/mock/*.go"),
		filepath.Join(root, "examples/internal/source/*.go")} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			sources += string(text)
		}
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	require.NotEmpty(t, blocks)
	for _, b := range blocks {
		code, _, closed := strings.Cut(b, "```")
		require.True(t, closed)
		require.True(t, strings.Contains(sources, code),
			"docs/write-a-backend.md quotes what is in none of the files any more:\n%s", code)
	}
}
