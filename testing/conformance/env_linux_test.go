package conformance

import (
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// Env.Do opens a backend's sockets in the node's namespace, from any goroutine.
func TestSocketsCanBeOpenedOnTheNode(t *testing.T) {
	families, err := network.Families()
	need.That(t, err == nil, "network namespaces (root, or unshare -rn)")
	n, err := network.New(families, 1)
	require.NoError(t, err)
	defer n.Close()
	env := Env{NetNS: n.Node.File}
	node := network.HostNamed(network.TheNode).V4.String()
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			assert.NoError(t, env.Do(func() error {
				l, err := net.Listen("tcp", net.JoinHostPort(node, "0"))
				if err == nil {
					err = l.Close()
				}
				return err
			}))
		})
	}
	group.Wait()
	_, err = net.Listen("tcp", net.JoinHostPort(node, "0"))
	require.Error(t, err, "the test itself is elsewhere")
	require.ErrorIs(t, env.Do(func() error { return io.EOF }), io.EOF)
	require.ErrorIs(t, env.Do(func() error { runtime.Goexit(); return nil }), osthread.ErrEnded)
}
