package testkit

import (
	"os"
	"testing"
)

// SocketDir returns a directory for Unix sockets, whose paths may have about 100 bytes at most. The path of t.TempDir
// contains the name of the test and the user's directory for temporary files, so it may be too long.
func SocketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kpl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
