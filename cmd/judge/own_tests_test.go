package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit/owntests"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// ownTests is a report with a test of each kind.
func ownTests() *owntests.Report {
	return &owntests.Report{
		Tested: owntests.Tested{Name: "kube-proxy", Version: "v1.37.2", Mode: "nftables", Command: "kube-proxy {node}",
			Beside: "brain"},
		Kubernetes: "v1.37.2", Kernel: "6.1.0", Nodes: 3, Started: time.Date(2026, 11, 30, 2, 0, 0, 0, time.UTC),
		Selected: 5, Passed: 1, PassedTests: []string{"serves"},
		Skipped: []owntests.Skipped{{Test: "is for a cloud", Reason: "Only supported for providers [gce]"}},
		Failures: []owntests.Failure{{Test: "fails", Message: "timed out", Again: "failed"},
			{Test: "fails at first", Message: "refused", Again: "passed"},
			{Test: "is lost", Message: "panic: nil", Again: "0 tests ran"}},
	}
}

func TestResultsOfKubernetesOwnTests(t *testing.T) {
	r, err := fromOwnTests(ownTests())
	require.NoError(t, err)
	r, err = r.Normalized()
	require.NoError(t, err)
	assert.Equal(t, "Kubernetes v1.37.2, 3 nodes, 2026-11-30", r.Suite)
	assert.Equal(t, "kube-proxy {node}\n# beside it: brain", r.Implementation.Command)
	assert.Empty(t, r.Newer(), "its tests are not the suite's cases")
	verdicts := map[string]string{}
	for _, result := range r.Results {
		verdicts[result.Case] = string(result.Verdict) + ": " + result.Why
		for _, f := range result.Failures {
			verdicts[result.Case] += ": " + f.Seen
		}
	}
	assert.Equal(t, map[string]string{
		"serves":         "passed: ",
		"is for a cloud": "not run: it skipped itself: Only supported for providers [gce]",
		"fails":          "failed: it failed also when it ran once more, alone: timed out",
		"fails at first": "not judged: it passed when it ran once more, alone: refused",
		"is lost":        "failed: how it ends alone is not known: 0 tests ran: panic: nil",
	}, verdicts)
	assert.Equal(t, "failure", r.Conclusion(report.Kubernetes))

	old := ownTests()
	old.PassedTests = nil
	_, err = fromOwnTests(old)
	assert.ErrorContains(t, err, "kube-proxy v1.37.2, nftables, names 0 of the 1 tests that passed")
}
