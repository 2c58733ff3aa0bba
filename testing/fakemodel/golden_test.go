package fakemodel

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestGolden(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "some.golden")
	missing := failure(t, func(tb testing.TB) { Golden(tb, path, "a\nb\n") })
	assert.Contains(t, missing, "some.golden")
	assert.Contains(t, missing, "FAKEMODEL_UPDATE=1 writes it")

	t.Setenv(updateVariable, "1")
	assert.Empty(t, failure(t, func(tb testing.TB) { Golden(tb, path, "a\nb\n") }))
	written, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "a\nb\n", string(written))
	assert.Contains(t, failure(t, func(tb testing.TB) { Golden(tb, filepath.Join(path, "x"), "a") }), "some.golden")
	assert.Contains(t, failure(t, func(tb testing.TB) { Golden(tb, filepath.Dir(path), "a") }), "is a directory")

	t.Setenv(updateVariable, "0")
	assert.Empty(t, failure(t, func(tb testing.TB) { Golden(tb, path, "a\nb\n") }))
	wrong := failure(t, func(tb testing.TB) { Golden(tb, path, "a\nc\n") })
	for _, want := range []string{"-b", "+c", "some.golden", "FAKEMODEL_UPDATE=1 overwrites it"} {
		assert.Contains(t, wrong, want)
	}
}
