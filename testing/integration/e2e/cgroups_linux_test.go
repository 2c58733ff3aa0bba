package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheWeightOfACgroup(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, setWeight(dir, 10))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, entries, "another controller has no such file")
	for file, want := range map[string]string{"cpu.shares": "10240", "cpu.weight": "1000"} {
		path := filepath.Join(t.TempDir(), file)
		require.NoError(t, os.WriteFile(path, nil, 0o644))
		require.NoError(t, setWeight(filepath.Dir(path), 10))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
}
