package testkit

import (
	"os"
	"testing"
)

// SocketDir returns a directory for Unix sockets, whose paths have about 100 bytes at most: t.TempDir has the name of
// the test in its own, and is below a directory of whoever runs it.
func SocketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kpl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
