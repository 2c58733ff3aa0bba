package owntests_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit/owntests"
)

// fixture is a report with a test of each kind.
func fixture() *owntests.Report {
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

func TestWhatFailed(t *testing.T) {
	r := fixture()
	assert.Equal(t, []string{"fails", "is lost"}, r.FailedAgain(), "what is not known to have passed counts as well")
	assert.Equal(t, "kube-proxy v1.37.2, nftables, Kubernetes v1.37.2, 3 nodes: of 5 tests 1 passed, 1 skipped, "+
		"3 failed, 1 of these also alone, 1 not known", r.Summary())
	assert.Equal(t, r.FailedAgain(), r.Worse(&owntests.Report{}))
	assert.Empty(t, r.Worse(fixture()), "a failure of both is nobody's")
	assert.True(t, r.Comparable(fixture()))
	other := fixture()
	other.Selected++
	assert.False(t, r.Comparable(other), "of other tests")
}

func TestReportsAreReadAsTheyWereWritten(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, owntests.WriteYAML(&b, fixture()))
	assert.True(t, owntests.Is(b.Bytes()))
	r, err := owntests.Read(b.Bytes())
	require.NoError(t, err)
	assert.Equal(t, fixture(), r)

	_, err = owntests.Read([]byte("tested: {colour: red}"))
	require.ErrorContains(t, err, `unknown field "colour"`)
	assert.True(t, owntests.Is([]byte("tested: {colour: red}")), "one that is damaged")
	for said, change := range map[string]*strings.Replacer{
		"of 9 tests it has 5":               strings.NewReplacer("selected: 5", "selected: 9"),
		"of 1 tests that passed it names 2": strings.NewReplacer("- serves", "- serves\n- also"),
	} {
		_, err = owntests.Read([]byte(change.Replace(b.String())))
		require.ErrorContains(t, err, said)
	}
	for _, text := range []string{"", "- tested", "{", "kind: ServiceProxyReport"} {
		assert.False(t, owntests.Is([]byte(text)), text)
	}
}
