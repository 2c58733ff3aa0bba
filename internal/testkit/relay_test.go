package testkit

import (
	"bufio"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestARelayPassesOnCutsAndBlocks(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		return l
	}
	server := listen()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	front := &failingListener{Listener: listen()}
	failures := make(chan error, 10)
	r := NewRelay(front, "tcp", server.Addr().String(), func(err error) { failures <- err })
	defer r.Close()
	// The relay continues after an error.
	assert.ErrorContains(t, <-failures, "too many open files")

	dial := func() net.Conn {
		c, err := net.Dial("tcp", front.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	answers := func(c net.Conn) error {
		_, _ = io.WriteString(c, "x\n")
		_, err := bufio.NewReader(c).ReadString('\n')
		return err
	}
	first := dial()
	require.NoError(t, answers(first))
	r.Cut()
	require.Error(t, answers(first))
	second := dial()
	require.NoError(t, answers(second))
	r.Block()
	require.Error(t, answers(second))
	require.Error(t, answers(dial()))
	r.Unblock()
	require.NoError(t, answers(dial()))
	assert.Equal(t, 4, r.Connections())
	assert.Empty(t, failures)

	require.NoError(t, server.Close())
	require.Error(t, answers(dial()))
	assert.ErrorContains(t, <-failures, "connection refused")
}

// failingListener fails once.
type failingListener struct {
	net.Listener
	failed bool
}

func (l *failingListener) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, errors.New("too many open files")
	}
	return l.Listener.Accept()
}
