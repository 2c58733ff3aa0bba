package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Two judges with one folder would overwrite each other's reports and logs.
func TestTwoJudgesOfOneFolder(t *testing.T) {
	folder := t.TempDir()
	release, err := lockFolder(folder)
	require.NoError(t, err)
	_, err = run(t.Context(), []string{"--proxy", "no-such-program", "--report", folder}, io.Discard, io.Discard)
	assert.ErrorContains(t, err, "--report: another judge writes to the folder "+folder)
	release()
	_, err = run(t.Context(), []string{"--proxy", "no-such-program", "--report", folder}, io.Discard, io.Discard)
	assert.ErrorContains(t, err, "no-such-program", "it is free again")
}
