package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAsCommand runs the judge with the arguments in KPL_JUDGE, separated by |, and prints the report: a virtual machine
// of testing/vm runs test binaries only. See in-vm.
func TestAsCommand(t *testing.T) {
	args := os.Getenv("KPL_JUDGE")
	if args == "" {
		t.Skip("KPL_JUDGE is empty") // nothing is missing
	}
	folder := t.TempDir()
	_, err := run(t.Context(), append(strings.Split(args, "|"), "--report", folder), os.Stdout, os.Stderr)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(folder, "report.yaml"))
	require.NoError(t, err)
	assert.True(t, bytes.HasSuffix(text, []byte("\n")))
	_, _ = os.Stdout.Write(append([]byte("--- report.yaml\n"), append(text, "--- end of report.yaml\n"...)...))
}
