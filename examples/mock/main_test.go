package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestMain(m *testing.M) { testkit.Main(m) }

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
		"an argument":                      {[]string{"now"}, `unexpected argument "now"`},
		"two sources":                      {[]string{"--file", "cluster", "--kubeconfig", "x"}, "are mutually exclusive"},
		"a file that is not":               {[]string{"--file", "nowhere"}, "nowhere"},
		"a kubeconfig that does not exist": {[]string{"--kubeconfig", "nowhere"}, "kubeconfig nowhere"},
		"a page for a moment":              {[]string{"--page", "--once"}, "--once and --page are mutually exclusive"},
		"an invalid address":               {[]string{"--page", "--page-address", "nowhere"}, "--page-address"},
		"an address for everybody": {[]string{"--page", "--page-address", "0.0.0.0:0"}, "everybody who does sees the " +
			"whole cluster: take one of 127.0.0.1 or ::1, or add --page-public"},
		"an unknown flag": {[]string{"--twice"}, "-twice"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.ErrorContains(t, run(t.Context(), tc.args, &bytes.Buffer{}), tc.want)
		})
	}
}

// With --page the script is played again and again, and the page shows it, with the backend's rows for a service.
func TestThePage(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"--page", "--page-address", "127.0.0.1:0", "--pause", "1ms"}, w)
		w.Close()
	}()
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	_, url, ok := strings.Cut(lines.Text(), "The page is at ")
	require.True(t, ok, lines.Text())
	for lines.Scan() && !strings.Contains(lines.Text(), "once more from the beginning") {
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url + "api/service?namespace=kube-system&name=kube-dns")
	require.NoError(t, err)
	defer response.Body.Close()
	var shown struct {
		Rules    string
		Pictures []struct {
			Groups []struct{ Endpoints []struct{ Pod string } }
		}
	}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&shown))
	assert.Contains(t, shown.Rules, "10.96.0.10:53/UDP")
	assert.Contains(t, shown.Pictures[0].Groups[0].Endpoints[0].Pod, "kube-system/coredns-", "the pods have names")
	cancel()
	assert.NoError(t, <-ended)
}
