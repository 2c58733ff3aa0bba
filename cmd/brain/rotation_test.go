package main

import (
	"bytes"
	"context"
	"flag"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/internal/program/brainflags"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

const testTimeout = time.Minute

// node is a proxy with the flags that every program with a brain has.
type node struct {
	health *health.Proxy
	sink   sink.Recorder
	stop   func()
}

// startNode runs a node until the test ends, or stop is called.
func startNode(t *testing.T, server, dir string, more ...string) *node {
	t.Helper()
	n := &node{health: health.New(0)}
	feed, err := remote.NewFeed(flagOptions(t, server, dir, more...))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		assert.NoError(t, kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: &n.sink, Health: n.health}))
	})
	n.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(n.stop)
	return n
}

func flagOptions(t *testing.T, server, dir string, more ...string) remote.Options {
	t.Helper()
	var flags brainflags.Flags
	set := flag.NewFlagSet("node", flag.ContinueOnError)
	flags.Register(set)
	flags.RegisterKeep(set)
	require.NoError(t, set.Parse(append([]string{"--server", server, "--ca-file", filepath.Join(dir, "bundle"),
		"--tls-cert-file", filepath.Join(dir, "node.crt"), "--tls-private-key-file", filepath.Join(dir, "node.key")},
		more...)))
	opts, err := flags.Options()
	require.NoError(t, err)
	opts.State.NodeName = "node-1"
	if opts.Keep != nil {
		opts.Keep.After = time.Millisecond
	}
	return opts
}

// awaitState waits until the node has its state, from a brain or from its file.
func (n *node) awaitState(t *testing.T, fromFile bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		return len(n.sink.Services()) == 5 && n.health.RestoredFrom().IsZero() != fromFile
	}, testTimeout, time.Millisecond)
}

// The authority of a brain is renewed as authorities are: the new one is added everywhere, then it signs the
// certificates, then the old one is removed. No node has to be restarted for it, and one that is restarted while no
// brain can be reached uses the state that it kept, at each step.
func TestAnAuthorityCanBeRenewed(t *testing.T) {
	dir, oldDir, newDir := t.TempDir(), t.TempDir(), t.TempDir()
	old, renewed := testkit.NewAuthority(t, oldDir), testkit.NewAuthority(t, newDir)
	read := func(path ...string) []byte {
		text, err := os.ReadFile(filepath.Join(path...))
		require.NoError(t, err)
		return text
	}
	write := func(name string, texts ...[]byte) { // in one step, as a Secret that is mounted
		tmp := filepath.Join(dir, "tmp")
		require.NoError(t, os.WriteFile(tmp, bytes.Join(texts, nil), 0o600))
		require.NoError(t, os.Rename(tmp, filepath.Join(dir, name)))
	}
	certificates := func(ca *testkit.Authority, from string) {
		ca.Server(t, "brain", net.IPv4(127, 0, 0, 1))
		ca.Client(t, "node", "system:node:node-1")
		for _, name := range []string{"brain", "node"} { // with the key in the same file, so that both change at once
			write(name, read(from, name+".crt"), read(from, name+".key"))
			for _, end := range []string{".crt", ".key"} {
				if _, err := os.Lstat(filepath.Join(dir, name+end)); err != nil {
					require.NoError(t, os.Symlink(name, filepath.Join(dir, name+end)))
				}
			}
		}
	}
	oldCA, newCA := read(oldDir, "ca.crt"), read(newDir, "ca.crt")
	write("bundle", oldCA)
	certificates(old, oldDir)
	address, _ := start(t, "--file", cluster, "--listen", "127.0.0.1:0", "--tls-cert-file",
		filepath.Join(dir, "brain.crt"), "--tls-private-key-file", filepath.Join(dir, "brain.key"), "--client-ca-file",
		filepath.Join(dir, "bundle"))
	const nowhere = "127.0.0.1:1"
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	through := testkit.NewRelay(listener, "tcp", address, nil)
	t.Cleanup(through.Close)
	stays, reconnects := startNode(t, address, dir), startNode(t, listener.Addr().String(), dir)
	stays.awaitState(t, false)
	reconnects.awaitState(t, false)
	online, offline := filepath.Join(dir, "online"), filepath.Join(dir, "offline")
	for _, file := range []string{online, offline} {
		n := startNode(t, address, dir, "--server-state-file", file)
		n.awaitState(t, false)
		n.stop() // it writes the file
	}
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"the old authority", func() {}},
		{"both", func() { write("bundle", oldCA, newCA) }},
		{"certificates of the new one", func() { certificates(renewed, newDir) }},
		{"the new one alone", func() { write("bundle", newCA) }},
	} {
		t.Run(step.name, func(t *testing.T) {
			step.do()
			before := through.Connections()
			through.Cut()
			require.Eventually(t, func() bool {
				return through.Connections() > before && reconnects.health.DisconnectedSince().IsZero()
			}, testTimeout, time.Millisecond, "a node that reconnects")
			assert.True(t, stays.health.DisconnectedSince().IsZero(), "a node that stays connected")
			for _, file := range []string{online, offline} {
				n := startNode(t, nowhere, dir, "--server-state-file", file)
				n.awaitState(t, true)
				n.stop()
			}
			n := startNode(t, address, dir, "--server-state-file", online)
			n.awaitState(t, false)
			n.stop()
		})
	}
}

// A saved state is not used for another cluster, whatever else the two have in common.
func TestAKeptStateOfAnotherAuthorityIsNotUsed(t *testing.T) {
	var found [2][]string
	for i := range found {
		dir := t.TempDir()
		ca := testkit.NewAuthority(t, dir)
		ca.Client(t, "node", "system:node:node-1")
		require.NoError(t, os.Rename(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "bundle")))
		keep := flagOptions(t, "127.0.0.1:1", dir, "--server-state-file", filepath.Join(dir, "state")).Keep
		var err error
		found[i], err = keep.Cluster()
		require.NoError(t, err)
		require.Len(t, found[i], 1)
	}
	assert.NotEqual(t, found[0], found[1])
}
