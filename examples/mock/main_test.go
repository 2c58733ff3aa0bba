package main

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheScriptShowsTheTableAndEveryChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), nil, &out))
		fakemodel.Golden(t, "testdata/script.txt", out.String())
	})
}

func TestOnceShowsTheTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), []string{"--once"}, &out))
		fakemodel.Golden(t, "testdata/once.txt", out.String())
	})
}

func TestFilesAreShownFromTheNodesPointOfView(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"--once", "--file", "cluster", "--node-name", "node-2"}, &out))
	fakemodel.Golden(t, "testdata/node-2.txt", out.String())
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
