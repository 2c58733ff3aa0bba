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
	"sigs.k8s.io/yaml"
)

// ownTestsReport is a report of testing/integration/e2e, which is in a module of its own.
type ownTestsReport struct {
	Tested       struct{ Name, Version, Mode, Command, Beside string }
	Kubernetes   string
	FeatureGates string
	Kernel       string
	Nodes        int
	Processors   int
	LoadBefore   float64
	LoadAfter    float64
	Started      time.Time
	Minutes      int
	Suite        struct {
		Focus, Skip string
		Parallel    int
	}
	Selected, Passed int
	Skipped          []struct{ Test, Reason string }
	Failures         []struct{ Test, Message, Again string }

	path string
}

// failedAgain returns the tests that failed also when they ran alone.
func (r *ownTestsReport) failedAgain() []string {
	var out []string
	for _, f := range r.Failures {
		if f.Again != "passed" {
			out = append(out, f.Test)
		}
	}
	return out
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
		r := ownTestsReport{}
		require.NoError(t, yaml.UnmarshalStrict(text, &r), path)
		r.path = filepath.ToSlash(strings.TrimPrefix(path, ownTestsFolder+string(filepath.Separator)))
		reports = append(reports, r)
	}
	return reports
}

// ownTestsTable is what docs/tested.md says of the reports, ownTestsShort what README.md says.
func ownTestsTable(reports []ownTestsReport) string {
	var b strings.Builder
	b.WriteString("| proxy | mode | Kubernetes | nodes | tests | passed | skipped | failed at first | again, alone " +
		"| kernel | day |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range reports {
		fmt.Fprintf(&b, "| [%s %s](../testing/integration/e2e/reports/%s) | %s | %s | %d | %d | %d | %d | %d | %d | %s "+
			"| %s |\n", tableCell(r.Tested.Name), tableCell(r.Tested.Version), r.path, tableCell(r.Tested.Mode),
			tableCell(r.Kubernetes), r.Nodes, r.Selected, r.Passed, len(r.Skipped), len(r.Failures), len(r.failedAgain()),
			tableCell(r.Kernel), r.Started.Format(time.DateOnly))
	}
	return b.String()
}

func ownTestsShort(reports []ownTestsReport) string {
	var b strings.Builder
	b.WriteString("| proxy | mode | tests | passed | skipped | failed, also alone |\n|---|---|---|---|---|---|\n")
	for _, r := range reports {
		fmt.Fprintf(&b, "| [%s %s](testing/integration/e2e/reports/%s) | %s | %d | %d | %d | %d |\n",
			tableCell(r.Tested.Name), tableCell(r.Tested.Version), r.path, tableCell(r.Tested.Mode), r.Selected,
			r.Passed+len(r.Failures)-len(r.failedAgain()), len(r.Skipped), len(r.failedAgain()))
	}
	return b.String()
}

// TestTheTablesOfKubernetesOwnTests: two pages say what the reports say. With FAKEMODEL_UPDATE=1 that is made anew.
func TestTheTablesOfKubernetesOwnTests(t *testing.T) {
	for path, table := range map[string]func([]ownTestsReport) string{
		"tested.md":    ownTestsTable,
		"../README.md": ownTestsShort,
	} {
		madeFromReports(t, path, table(ownTestsReports(t)))
	}
}

// TestReportsOfKubernetesOwnTestsAreWhole: each report counts every test and says how to repeat the run. There is also
// a report of kube-proxy in the same mode with the same tests, in which each test that fails here failed as well.
func TestReportsOfKubernetesOwnTestsAreWhole(t *testing.T) {
	reports := ownTestsReports(t)
	for _, r := range reports {
		assert.Equal(t, fmt.Sprintf("%s/%s-%s.yaml", r.Tested.Name, r.Tested.Version, r.Tested.Mode), r.path)
		assert.Equal(t, r.Selected, r.Passed+len(r.Skipped)+len(r.Failures), r.path)
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
			assert.Subset(t, reports[i].failedAgain(), r.failedAgain(), r.path)
		}
	}
}
