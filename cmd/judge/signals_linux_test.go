package main

import (
	"context"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A connection of the suite that the other side has closed does not end the judge; a closed output does.
func TestBrokenPipes(t *testing.T) {
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	defer writer.Close()
	ctx, cancel, out, _ := untilEnded(writer, io.Discard)
	defer cancel()

	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer syscall.Close(pair[1])
	require.NoError(t, syscall.Close(pair[0]))
	for range 10 {
		_, err = syscall.Write(pair[1], []byte("x"))
		require.ErrorIs(t, err, syscall.EPIPE)
	}
	_, err = out.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, ctx.Err())

	require.NoError(t, reader.Close())
	_, err = out.Write([]byte("x"))
	require.ErrorIs(t, err, syscall.EPIPE)
	<-ctx.Done()
	assert.ErrorContains(t, context.Cause(ctx), "nobody reads the output")
}
