package mynft_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// All Go code in these pages is taken from files that are compiled and tested.
func TestThePagesQuoteRealCode(t *testing.T) {
	const root = "../../../.."
	var sources string
	for _, pattern := range []string{"*.go", "../../example_test.go", filepath.Join(root, "example_test.go"),
		filepath.Join(root, "examples/mock/*.go"),
		filepath.Join(root, "internal/program/source/*.go"), filepath.Join(root, "diffstore/*_test.go"),
		filepath.Join(root, "dropin/command/example_test.go")} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			sources += string(text)
		}
	}
	for _, name := range []string{"docs/write-a-backend.md", "docs/move-here.md", "docs/move-here-projects.md"} {
		page, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		blocks := strings.Split(string(page), "```go\n")[1:]
		require.NotEmpty(t, blocks, name)
		for _, b := range blocks {
			code, _, closed := strings.Cut(b, "```")
			require.True(t, closed)
			require.True(t, strings.Contains(sources, code), "%s quotes what is in none of the files any more:\n%s", name,
				code)
		}
	}
}
