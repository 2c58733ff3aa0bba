package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit/owntests"
)

// ownTestsReport is a report of testing/integration/e2e.
type ownTestsReport struct {
	owntests.Report

	path string
}

var ownTestsFolder = filepath.Join("..", "testing", "integration", "e2e", "reports")

// ownTestsReports reads the committed reports of Kubernetes' own tests, by name, version and mode.
func ownTestsReports(t *testing.T) []ownTestsReport {
	paths, err := filepath.Glob(filepath.Join(ownTestsFolder, "*/*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	slices.Sort(paths)
	var reports []ownTestsReport
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		r, err := owntests.Read(text)
		require.NoError(t, err, path)
		reports = append(reports, ownTestsReport{*r,
			filepath.ToSlash(strings.TrimPrefix(path, ownTestsFolder+string(filepath.Separator)))})
	}
	return reports
}

// ownTestsTable is what docs/tested.md says of the reports.
func ownTestsTable(reports []ownTestsReport) string {
	var b strings.Builder
	b.WriteString("| proxy | mode | Kubernetes | nodes | tests | passed, at first or alone | skipped | failed at first " +
		"| failed, also alone | kernel | day |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range reports {
		fmt.Fprintf(&b, "| [%s %s](../testing/integration/e2e/reports/%s) | %s | %s | %d | %d | %d | %d | %d | %d | %s "+
			"| %s |\n", tableCell(r.Tested.Name), tableCell(r.Tested.Version), r.path, tableCell(r.Tested.Mode),
			tableCell(r.Kubernetes), r.Nodes, r.Selected, r.Passed+len(r.Failures)-len(r.FailedAgain()), len(r.Skipped),
			len(r.Failures), len(r.FailedAgain()), tableCell(r.Kernel), r.Started.Format(time.DateOnly))
	}
	return b.String()
}

// TestTheTableOfKubernetesOwnTests: the page says what the reports say. With FAKEMODEL_UPDATE=1 that is made anew.
func TestTheTableOfKubernetesOwnTests(t *testing.T) {
	madeFromReports(t, "tested.md", ownTestsTable(ownTestsReports(t)))
}

// TestReportsOfKubernetesOwnTestsAreWhole: each report can be read, and says how to repeat the run. There is also
// a report of kube-proxy in the same mode with the same tests, in which each test that fails here failed as well.
func TestReportsOfKubernetesOwnTestsAreWhole(t *testing.T) {
	reports := ownTestsReports(t)
	for _, r := range reports {
		assert.Equal(t, fmt.Sprintf("%s/%s-%s.yaml", r.Tested.Name, r.Tested.Version, r.Tested.Mode), r.path)
		canBeRepeated(t, r.path, r.Tested.Command)
		for _, f := range r.Failures {
			assert.NotEmpty(t, f.Again, "%s: %s did not run again", r.path, f.Test)
		}
		i := slices.IndexFunc(reports, func(o ownTestsReport) bool {
			mode, _, _ := strings.Cut(r.Tested.Mode, "-")
			return o.Tested.Name == "kube-proxy" && o.Kubernetes == r.Kubernetes && o.Tested.Mode == mode
		})
		if assert.NotEqual(t, -1, i, "%s has no report of kube-proxy beside it", r.path) {
			assert.Equal(t, reports[i].Suite, r.Suite, r.path)
			assert.Equal(t, reports[i].FeatureGates, r.FeatureGates, r.path)
			assert.Equal(t, reports[i].Selected, r.Selected, r.path)
			assert.Subset(t, reports[i].FailedAgain(), r.FailedAgain(), r.path)
		}
	}
}
