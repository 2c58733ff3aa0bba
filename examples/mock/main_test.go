package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// golden compares with a file that a person has read. UPDATE_GOLDEN=1 writes it anew.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		require.NoError(t, os.WriteFile(file, got, 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got))
}

func TestTheScriptShowsTheTableAndEveryChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), nil, &out))
		golden(t, "script.txt", out.Bytes())
	})
}

func TestOnceShowsTheTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), []string{"--once"}, &out))
		golden(t, "once.txt", out.Bytes())
	})
}

func TestFilesAreShownFromTheNodesPointOfView(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"--once", "--file", "cluster", "--node-name", "node-2"}, &out))
	golden(t, "node-2.txt", out.Bytes())
}

func TestItEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.NoError(t, run(ctx, []string{"--file", "cluster"}, &bytes.Buffer{}))
}

func TestWrongFlagsAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"an argument":             {[]string{"now"}, `unexpected argument "now"`},
		"two sources":             {[]string{"--file", "cluster", "--kubeconfig", "x"}, "exclude each other"},
		"a file that is not":      {[]string{"--file", "nowhere"}, "nowhere"},
		"a kubeconfig that isn't": {[]string{"--kubeconfig", "nowhere"}, "kubeconfig nowhere"},
		"an unknown flag":         {[]string{"--twice"}, "-twice"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.ErrorContains(t, run(t.Context(), tc.args, &bytes.Buffer{}), tc.want)
		})
	}
}
