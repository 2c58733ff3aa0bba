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
	cell := func(text string) string {
		return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(report.Clean(text))
	}
	list := func(features []string) string { return cell(strings.Join(features, ", ")) }
	b.WriteString("| proxy | mode | core | extended | fails at | lacks | kernel | suite |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, r := range reports {
		_, failed, lacks := r.Features()
		fmt.Fprintf(&b, "| [%s %s](%s) | %s | %v | %v | %s | %s | %s | %s |\n", cell(r.Implementation.Name),
			cell(r.Implementation.Version), r.path, cell(r.Implementation.Mode), r.Counts(report.Core),
			r.Counts(report.Extended), list(failed), list(lacks), cell(r.Kernel), cell(r.Suite))
	}
	for _, r := range reports {
		command := strings.TrimSpace(report.Clean(r.Implementation.Command))
		fmt.Fprintf(&b, "\n%s:\n\n```sh\n%s\n```\n", r.Implementation, command)
	}
	return b.String()
}

// TestTheConformanceTable: the page says what the reports say. With FAKEMODEL_UPDATE=1 it is made anew.
func TestTheConformanceTable(t *testing.T) {
	const path = "conformance/README.md"
	const begin, end = "<!-- made from the reports by TestTheConformanceTable -->\n\n", "\n<!-- end of what is made -->\n"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	require.True(t, found)
	_, after, found := strings.Cut(rest, end)
	require.True(t, found)
	fm.Golden(t, path, before+begin+conformanceTable(conformanceReports(t))+end+after)
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
