package certificates

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// Authorities are identified by their keys, in any order, whatever else is in the file.
func TestAuthorities(t *testing.T) {
	var texts [2][]byte
	var each [2][]string
	file := filepath.Join(t.TempDir(), "bundle")
	for i := range texts {
		dir := t.TempDir()
		testkit.NewAuthority(t, dir)
		var err error
		texts[i], err = os.ReadFile(filepath.Join(dir, "ca.crt"))
		require.NoError(t, err)
		each[i], err = Authorities(filepath.Join(dir, "ca.crt"))
		require.NoError(t, err)
		require.Len(t, each[i], 1)
	}
	want := slices.Sorted(slices.Values(append(each[0], each[1]...)))
	comment := []byte("# both\n-----BEGIN X-----\nAAAA\n-----END X-----\n")
	for _, order := range [][][]byte{{texts[0], texts[1]}, {texts[1], comment, texts[0], texts[1]}} {
		require.NoError(t, os.WriteFile(file, slices.Concat(order...), 0o600))
		all, err := Authorities(file)
		require.NoError(t, err)
		assert.Equal(t, want, all)
	}
	require.NoError(t, os.WriteFile(file, comment, 0o600))
	_, err := Authorities(file)
	assert.ErrorContains(t, err, "contains no certificate")
	_, err = Authorities(file + "x")
	assert.ErrorIs(t, err, os.ErrNotExist)
}
