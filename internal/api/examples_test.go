package api

import (
	"go/doc"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withoutExample are the packages that have no checked example, each with the reason.
func withoutExample() map[string]string {
	return map[string]string{
		"examples/python": "it has no Go code: its test compares a program in Python with one in Go",
	}
}

// TestEveryPackageHasAnExample checks that every package that others can import has an example with checked output, so
// that its documentation shows how it is used.
func TestEveryPackageHasAnExample(t *testing.T) {
	packages, err := importable("../..")
	require.NoError(t, err)
	exceptions := withoutExample()
	for _, folder := range slices.Sorted(maps.Keys(packages)) {
		if reason := exceptions[folder]; reason != "" {
			assert.False(t, hasExample(t, filepath.Join("../..", folder)),
				"package %s has an example: take it from the exceptions", folder)
			delete(exceptions, folder)
			continue
		}
		assert.True(t, hasExample(t, filepath.Join("../..", folder)),
			"package %s has no example with an output", folder)
	}
	assert.Empty(t, exceptions, "exceptions for packages that do not exist")
}

// hasExample reports whether a folder has an example with output.
func hasExample(t *testing.T, folder string) bool {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		require.NoError(t, err)
		if slices.ContainsFunc(doc.Examples(parsed), func(e *doc.Example) bool { return e.Output != "" }) {
			return true
		}
	}
	return false
}
