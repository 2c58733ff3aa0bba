package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// conformanceReport is a committed report, and its path below docs/conformance.
type conformanceReport struct {
	*report.Report
	path string
}

// conformanceReports reads all reports below docs/conformance, by suite, name, version and mode.
func conformanceReports(t *testing.T) []conformanceReport {
	paths, err := filepath.Glob("conformance/*/*/*.yaml")
	require.NoError(t, err)
	var reports []conformanceReport
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		r, err := report.Read(text)
		require.NoError(t, err, path)
		reports = append(reports, conformanceReport{r, filepath.ToSlash(strings.TrimPrefix(path, "conformance"+
			string(filepath.Separator)))})
	}
	slices.SortStableFunc(reports, func(a, b conformanceReport) int { return strings.Compare(a.path, b.path) })
	return reports
}

// conformanceTable is what docs/conformance/README.md says of the reports: figures and names, and how to repeat each.
func conformanceTable(reports []conformanceReport) string {
	var b strings.Builder
	list := func(features []string) string { return tableCell(strings.Join(features, ", ")) }
	b.WriteString("| proxy | mode | core | extended | fails at | lacks | kernel | suite |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, r := range reports {
		_, failed, lacks := r.Features()
		fmt.Fprintf(&b, "| [%s %s](%s) | %s | %v | %v | %s | %s | %s | %s |\n", tableCell(r.Implementation.Name),
			tableCell(r.Implementation.Version), r.path, tableCell(r.Implementation.Mode), r.Counts(report.Core),
			r.Counts(report.Extended), list(failed), list(lacks), tableCell(r.Kernel), tableCell(r.Suite))
	}
	for _, r := range reports {
		command := strings.TrimSpace(report.Clean(r.Implementation.Command))
		fmt.Fprintf(&b, "\n%s:\n\n```sh\n%s\n```\n", r.Implementation, command)
	}
	return b.String()
}

// shortTable is what the repository's README says of them.
func shortTable(reports []conformanceReport) string {
	var b strings.Builder
	b.WriteString("| proxy | mode | core | extended |\n|---|---|---|---|\n")
	for _, r := range reports {
		fmt.Fprintf(&b, "| [%s %s](docs/conformance/%s) | %s | %v | %v |\n", tableCell(r.Implementation.Name),
			tableCell(r.Implementation.Version), r.path, tableCell(r.Implementation.Mode), r.Counts(report.Core),
			r.Counts(report.Extended))
	}
	return b.String()
}

func tableCell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(report.Clean(text))
}

// TestTheConformanceTables: two pages say what the reports say. With FAKEMODEL_UPDATE=1 that is made anew.
func TestTheConformanceTables(t *testing.T) {
	const begin, end = "<!-- made from the reports by TestTheConformanceTables -->\n\n", "\n<!-- end of what is made -->\n"
	for path, table := range map[string]func([]conformanceReport) string{
		"conformance/README.md": conformanceTable,
		"../README.md":          shortTable,
	} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		before, rest, found := strings.Cut(string(text), begin)
		require.True(t, found, path)
		_, after, found := strings.Cut(rest, end)
		require.True(t, found, path)
		fm.Golden(t, path, before+begin+table(conformanceReports(t))+end+after)
	}
}

// TestConformanceReportsAreWhereTheyBelong: by suite and name, and each can be repeated.
func TestConformanceReportsAreWhereTheyBelong(t *testing.T) {
	for _, r := range conformanceReports(t) {
		i := r.Implementation
		file := strings.ReplaceAll(strings.Trim(i.Version+"-"+i.Mode, "-"), " ", "-")
		assert.Equal(t, fmt.Sprintf("%s/%s/%s.yaml", r.Suite, i.Name, file), r.path)
		assert.NotEmpty(t, i.Command, "%s cannot be repeated", r.path)
		assert.Empty(t, r.Problem, "%s is not complete", r.path)
		for _, place := range []string{"/tmp/", "/root/", "/home/"} {
			assert.NotContains(t, i.Command, place, "%s: a folder that readers do not have", r.path)
		}
	}
}
