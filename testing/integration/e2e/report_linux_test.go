package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit/owntests"
)

// junit is as ginkgo writes it.
const junit = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="6" disabled="1" errors="0" failures="2">
  <testsuite name="Kubernetes e2e suite">
    <testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"></testcase>
    <testcase name="[It] [sig-network] Services should serve" status="passed" time="1"></testcase>
    <testcase name="[It] [sig-network] Services should fail" status="failed" time="1">
      <failure message="timed out&#xA;at line 7" type="failed">details</failure>
    </testcase>
    <testcase name="[It] [sig-network] Services should panic" status="panicked" time="1">
      <error message="panic: nil" type="panicked">details</error>
    </testcase>
    <testcase name="[It] [sig-network] Ingress" status="skipped" time="0">
      <skipped message="skipped - Only supported for providers [gce]"></skipped>
    </testcase>
    <testcase name="[It] [sig-storage] Volumes" status="skipped" time="0">
      <skipped message="skipped"></skipped>
    </testcase>
  </testsuite>
</testsuites>`

func TestReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "junit.xml")
	require.NoError(t, os.WriteFile(path, []byte(junit), 0o644))
	results, err := readResults(path)
	require.NoError(t, err)
	r := &owntests.Report{}
	addTo(r, results)
	assert.Equal(t, &owntests.Report{Selected: 4, Passed: 1, PassedTests: []string{"[sig-network] Services should serve"},
		Skipped: []owntests.Skipped{{Test: "[sig-network] Ingress", Reason: "Only supported for providers [gce]"}},
		Failures: []owntests.Failure{{Test: "[sig-network] Services should fail", Message: "timed out"},
			{Test: "[sig-network] Services should panic", Message: "panic: nil"}}}, r,
		"what its name does not select is not counted, nor what surrounds the tests")
}

func TestOutcomeOfATestThatRanAgain(t *testing.T) {
	other := result{test: "[sig-storage] Volumes"}
	assert.Equal(t, "passed", outcome([]result{other, {test: "a", outcome: "passed"}}))
	assert.Equal(t, "failed", outcome([]result{{test: "a", outcome: "failed"}, other}))
	assert.Equal(t, "0 tests ran", outcome([]result{other}), "which is no success")
}

func TestFocusOnATestThatRunsAgain(t *testing.T) {
	const suite = "Kubernetes e2e suite "
	for name, text := range map[string]string{
		"[sig-network] Services should serve [sig-network, Conformance]": "[sig-network] Services should serve",
		"[sig-network] KubeProxy should count [Feature:KubeProxyNFAcct] [sig-network, Feature:KubeProxyNFAcct]": "[sig-network] " +
			"KubeProxy should count [Feature:KubeProxyNFAcct]",
		"[sig-network] without labels [Serial]":    "[sig-network] without labels [Serial]",
		"[sig-network] with (brackets) and a dot.": "[sig-network] with (brackets) and a dot.",
	} {
		focus := regexp.MustCompile(focusOn(name))
		assert.True(t, focus.MatchString(suite+text), name)
		assert.False(t, focus.MatchString(suite+text+" and more"), name)
		assert.False(t, focus.MatchString(suite+"not"+text), name)
	}
}
