package osthread_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// namespaceHere is the identity of the network namespace of this thread.
func namespaceHere(t *testing.T) string {
	id, err := os.Readlink("/proc/thread-self/ns/net")
	assert.NoError(t, err)
	return id
}

func TestThreadsStayInTheirNamespace(t *testing.T) {
	n, err := osthread.NewNamespace()
	testkit.Need(t, err == nil, fmt.Sprintf("the right to make network namespaces (%v)", err))
	defer n.Close()
	here, there := namespaceHere(t), ""
	require.NoError(t, n.Do(func() error { there = namespaceHere(t); return nil }))
	assert.NotEqual(t, here, there)
	boom := errors.New("boom")
	for range 10 {
		require.ErrorIs(t, osthread.In(n.FD(), func() error {
			assert.Equal(t, there, namespaceHere(t))
			return boom
		}), boom)
	}
	assert.Equal(t, here, namespaceHere(t))
	other, err := os.Readlink(n.File.Name())
	require.NoError(t, err)
	assert.Equal(t, there, other, "by the name of the file")
}

func TestAThreadThatCannotEnterItsNamespaceEnds(t *testing.T) {
	called := false
	require.ErrorContains(t, osthread.In(-1, func() error { called = true; return nil }), "enter the network namespace")
	assert.False(t, called)
}

func TestAThreadMayEnd(t *testing.T) {
	thread, err := osthread.NewThread(func() error { return nil })
	require.NoError(t, err)
	require.ErrorIs(t, thread.Do(func() error { runtime.Goexit(); return nil }), osthread.ErrEnded)
	require.ErrorIs(t, thread.Do(func() error { return nil }), osthread.ErrEnded)
	thread.Close()
	require.NoError(t, (*osthread.Thread)(nil).Do(func() error { return nil }))
}
