package main

import (
	"os"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// TestMain lets the suite wait longer than it would by itself, because the machine may be busy. It is set here, for the
// whole process, so that tests can run side by side.
func TestMain(m *testing.M) {
	if err := os.Setenv("KPL_TIMEOUT_FACTOR", "5"); err != nil {
		panic(err)
	}
	testkit.MoreAtOnce()
	os.Exit(m.Run())
}
