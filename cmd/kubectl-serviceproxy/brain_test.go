package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// The state from a brain is the same as from the cluster, and a second call shows what has changed since the first.
func TestWithABrain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(cluster)))
	source, err := watch.NewFiles(dir)
	require.NoError(t, err)
	server, err := brain.New(ctx, brain.Options{Source: source})
	require.NoError(t, err)
	target := "unix://" + filepath.Join(testkit.SocketDir(t), "brain.sock")
	listener, err := brain.Listen(ctx, target, 0)
	require.NoError(t, err)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { assert.NoError(t, server.Run(ctx)) })
	wg.Go(func() { assert.NoError(t, server.Serve(ctx, listener, brain.ServeOptions{})) })

	look := func(command string, more ...string) (out, notes string) {
		var printed, said strings.Builder
		args := append([]string{command, "--brain", target, "--node", "node-1"}, more...)
		require.NoError(t, run(t.Context(), args, &printed, &said))
		return printed.String(), said.String()
	}
	out, notes := look("state")
	assert.Equal(t, string(output(t, "state")), out)
	_, flags, ok := strings.Cut(strings.TrimSpace(notes), "to see later changes: ")
	require.True(t, ok, notes)
	const question = "pod 10.1.1.21 -> 10.96.0.10:53/UDP"
	answer, _ := look("flow", question)
	want := strings.Replace(string(output(t, "flow", question)), "pod kube-system/coredns-a on node", "on node", 1)
	assert.Equal(t, want, answer, "this brain does not tell the names of pods")
	node, _, _ := strings.Cut(out, "\n")
	out, again := look("state", strings.Fields(flags)...)
	assert.Equal(t, node+"\n", out, "no service has changed")
	assert.Equal(t, notes, again)
}

func TestWrongFlagsOfABrainAreRefused(t *testing.T) {
	for want, args := range map[string][]string{
		"only one of --file, --brain and --url": {"--brain", "unix:///nowhere", "--file", cluster},
		"--instance-id and --rev":               {"--brain", "unix:///nowhere", "--rev", "7"},
		"--brain: ":                             {"--brain", "127.0.0.1:1"},
		"--insecure needs --brain":              {"--insecure"},
		"must be given together":                {"--brain", "unix:///nowhere", "--tls-cert-file", "nowhere"},
	} {
		assert.ErrorContains(t, run(t.Context(), append([]string{"state"}, args...), io.Discard, io.Discard), want)
	}
}
