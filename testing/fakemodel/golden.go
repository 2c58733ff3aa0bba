package fakemodel

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// updateVariable makes tests update the files instead of comparing. It is an environment variable because a library
// should not define flags.
const updateVariable = "FAKEMODEL_UPDATE"

func updating() bool { return os.Getenv(updateVariable) == "1" }

// Golden ends the test unless got equals the content of the file at path, relative to the test's folder. With
// FAKEMODEL_UPDATE=1 in the environment it writes the file instead: review the difference before you commit it.
func Golden(tb testing.TB, path, got string) {
	tb.Helper()
	if updating() {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			tb.Fatalf("fakemodel: %v", err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			tb.Fatalf("fakemodel: %v", err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		tb.Fatalf("fakemodel: %v (%s=1 writes it)", err, updateVariable)
	}
	require.Equal(tb, string(want), got, "not what %s holds (%s=1 overwrites it)", path, updateVariable)
}
