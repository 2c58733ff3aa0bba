package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAsCommand runs the judge with the arguments in the file KPL_JUDGE, each ended by a zero byte, and prints the
// report: a virtual machine of testing/vm runs test binaries only. See in-vm.
func TestAsCommand(t *testing.T) {
	file := os.Getenv("KPL_JUDGE")
	if file == "" {
		t.Skip("KPL_JUDGE is empty") // nothing is missing
	}
	args, err := os.ReadFile(file)
	require.NoError(t, err)
	folder := t.TempDir()
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok { // what has not been run by then is reported like that
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-2*time.Minute))
		defer cancel()
	}
	_, err = run(ctx, append(strings.Split(strings.TrimSuffix(string(args), "\x00"), "\x00"), "--report", folder),
		os.Stdout, os.Stderr)
	var part *partError // the report says it
	if !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &part) {
		require.NoError(t, err)
	}
	// The machine keeps nothing.
	if log, err := os.ReadFile(filepath.Join(folder, "proxy-1.log")); err == nil {
		_, _ = os.Stdout.Write(append([]byte("--- proxy-1.log\n"), log...))
	}
	text, err := os.ReadFile(filepath.Join(folder, "report.yaml"))
	require.NoError(t, err)
	assert.True(t, bytes.HasSuffix(text, []byte("\n")))
	_, _ = os.Stdout.Write(append([]byte("--- report.yaml\n"), append(text, "--- end of report.yaml\n"...)...))
}
