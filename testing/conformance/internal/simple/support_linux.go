package simple

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// Child runs one of the helper tests below in a separate process.
func Child(ctx context.Context, test string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), "KPL_CONFORMANCE_CHILD="+test)
	return cmd
}

// ChildOnly skips a helper test unless another test runs it.
func ChildOnly(t *testing.T) {
	if os.Getenv("KPL_CONFORMANCE_CHILD") != t.Name() {
		t.Skip("a helper of another test")
	}
}

// NeedNetwork skips a test where there are no network namespaces.
func NeedNetwork(t *testing.T) {
	t.Helper()
	_, err := network.Families()
	need.That(t, err == nil, "network namespaces (root, or unshare -rn)")
}

// CaseNamed returns a case of the suite.
func CaseNamed(t *testing.T, name string) cases.Case {
	t.Helper()
	for _, c := range slices.Concat(cases.All(), cases.ForPrograms()) {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("there is no case %q", name)
	return cases.Case{}
}

// NeedPrograms skips a test on a machine that lacks a program of the cases that have to catch a mutant.
func NeedPrograms(t *testing.T, m Mutant) {
	t.Helper()
	for name := range MustCatch[m] {
		why := CaseNamed(t, name).MissingHere()
		need.That(t, why == "", "iptables and ip6tables, for the case \""+name+"\": "+why)
	}
}
