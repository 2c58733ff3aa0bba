package userspace

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// New, not only NewLoopback, makes do with the file descriptors that it may have.
func TestNewAsksHowManyFilesTheProcessMayOpen(t *testing.T) {
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	low := before
	low.Cur = 1024
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	b, err := New(t.Context(), Options{Common: frontend.Common{Host: &nodeaddr.Fake{}}})
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	require.NoError(t, err)
	defer func() { assert.NoError(t, b.Close()) }()
	assert.Equal(t, []int{42, 256, 256}, []int{b.connections.limit, b.flows.limit, b.listeners.limit})
}
