package output

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit/owntests"
)

// ownTests is a report with a test of each kind.
func ownTests() *owntests.Report {
	return &owntests.Report{
		Tested: owntests.Tested{Name: "example-proxy", Version: "v1", Mode: "nftables", Command: "example-proxy {node}",
			Beside: "a brain"},
		Kubernetes: "v1.37.2", FeatureGates: "A=true", Kernel: "6.1.0", Nodes: 3, Processors: 2, LoadBefore: 0.5,
		Started: time.Date(2026, 11, 30, 2, 0, 0, 0, time.UTC), Suite: owntests.Suite{Focus: "net", Skip: "Slow"},
		Selected: 6, Passed: 1, PassedTests: []string{"DNS <b>works</b>"},
		Skipped: []owntests.Skipped{{Test: "is for a cloud", Reason: "Only supported for providers [gce]"}},
		Failures: []owntests.Failure{{Test: "fails", Message: "timed \x1b out", Again: "failed"},
			{Test: "fails at first", Message: "refused", Again: "passed"},
			{Test: "is lost", Message: "panic: nil", Again: "0 tests ran"},
			{Test: "then skips itself", Message: "panic: nil", Again: "skipped"}},
	}
}

func ownTestsPage(t *testing.T, reports ...*owntests.Report) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, OwnTestsHTML(&b, reports...))
	return b.String()
}

func TestThePageOfKubernetesOwnTests(t *testing.T) {
	html := ownTestsPage(t, ownTests())
	for _, want := range []string{"Kubernetes’ own network tests", "example-proxy v1, mode nftables",
		"example-proxy {node}\n# beside it: a brain", "feature gates <b>A=true</b>", "tests <b>net</b>", "without <b>Slow</b>",
		"load average 0.5 before", "DNS &lt;b&gt;works&lt;/b&gt;", `timed \x1b out`,
		"1 passed, 1 failed, 1 failed at first, 2 not known, 1 skipped", `<td class="failure">failure</td>`,
		"Only supported for providers [gce]", "When it ran once more, alone: 0 tests ran."} {
		assert.Contains(t, html, want)
	}
	for _, not := range []string{`id="features"`, "cases more", "seed", `class="warning"`} {
		assert.NotContains(t, html, not)
	}
	assertWhole(t, html)

	fine := ownTests()
	fine.Failures = fine.Failures[1:2]
	fine.Selected = 3
	assert.Contains(t, ownTestsPage(t, fine), `<td class="success">success</td>`, "it passed alone")
}

func TestReportsOfKubernetesOwnTestsSideBySide(t *testing.T) {
	old := ownTests()
	old.PassedTests = nil
	html := ownTestsPage(t, ownTests(), old)
	assert.Contains(t, html, "from before reports named the tests that passed")
	assert.Contains(t, html, `<tr class="case has-passed"><th scope="row">DNS &lt;b&gt;works&lt;/b&gt;</th>`+
		`<td class="cell passed">passed</td><td class="cell "></td></tr>`)
	assert.Equal(t, 1, strings.Count(html, `<th scope="row">is for a cloud</th>`))
	assert.NotContains(t, html, "Other tests than those")
	old.Kubernetes = "v1.36.0"
	assert.Contains(t, ownTestsPage(t, ownTests(), old), "Other tests than those of the first report")
}
