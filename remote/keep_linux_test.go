package remote

import (
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// ownMounts runs a function on a thread with its own file system of 64 KB mounted at dir.
func ownMounts(t *testing.T, dir string, f func()) {
	need.Root(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		for _, err := range []error{
			syscall.Unshare(syscall.CLONE_FS | syscall.CLONE_NEWNS),
			syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
			syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"),
		} {
			if !assert.NoError(t, err) {
				return
			}
		}
		f()
	}()
	<-done
}

// If there is no room for a new state, or writing is not permitted, the old one stays, and nothing else is left behind.
func TestAFullOrReadOnlyDiskKeepsTheOldState(t *testing.T) {
	dir := t.TempDir()
	k := keepIn(dir)
	ownMounts(t, dir, func() {
		assert.NoError(t, k.write([]byte("old")))
		assert.ErrorIs(t, k.write(make([]byte, 1<<20)), syscall.ENOSPC)
		got, err := k.read()
		assert.NoError(t, err)
		assert.Equal(t, "old", string(got))
		assert.Equal(t, []string{"state"}, names(t, dir))
		assert.NoError(t, k.write([]byte("new")), "there is room again")
		assert.NoError(t, syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
		assert.ErrorIs(t, k.write([]byte("newer")), syscall.EROFS)
		got, err = k.read()
		assert.NoError(t, err)
		assert.Equal(t, "new", string(got))
	})
}

// Opening a pipe instead of a file would block.
func TestAPipeIsNotRead(t *testing.T) {
	k := keepIn(t.TempDir())
	require.NoError(t, syscall.Mkfifo(k.File, 0o600))
	_, err := k.read()
	require.ErrorContains(t, err, "not a regular file")
	require.NoError(t, os.Remove(k.File))
}

// BenchmarkKeep writes a state of 50,000 endpoints to the file, and reads it.
func BenchmarkKeep(b *testing.B) {
	var decoder wire.Decoder
	var batch wire.Batch
	var unzip decompressor
	for _, m := range firstState(b, 5000) {
		_, err := decoder.Update(m, unzip.decompress, &batch)
		require.NoError(b, err)
	}
	v, k := newView(stateN1), keepIn(b.TempDir())
	require.NoError(b, v.take(b.Context(), remotev1.Kind_RESET, batch))
	require.Len(b, contents(v).Endpoints(), 50_000)
	at := time.Now()
	b.Run("Write", func(b *testing.B) {
		for b.Loop() {
			content, err := k.encode(helloN1, v.kept(at))
			require.NoError(b, err)
			require.NoError(b, k.write(content))
			b.ReportMetric(float64(len(content)), "file-bytes")
		}
	})
	b.Run("Read", func(b *testing.B) {
		for b.Loop() {
			content, err := k.read()
			require.NoError(b, err)
			_, batch, err := k.decode(content, helloN1, at)
			require.NoError(b, err)
			require.NoError(b, newView(stateN1).take(b.Context(), remotev1.Kind_RESET, batch))
		}
	})
}
