package docs_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiversion "k8s.io/apimachinery/pkg/util/version"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// conformanceReport is a committed report, and its path below testing/conformance/reports.
type conformanceReport struct {
	*report.Report
	path string
}

var reportFolder = filepath.Join("..", "testing", "conformance", "reports")

// conformanceReports reads all reports below testing/conformance/reports, by suite, name, version and mode.
func conformanceReports(t *testing.T) []conformanceReport {
	paths, err := filepath.Glob(filepath.Join(reportFolder, "*/*/*.yaml"))
	require.NoError(t, err)
	var reports []conformanceReport
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		r, err := report.Read(text)
		require.NoError(t, err, path)
		below := strings.TrimPrefix(path, reportFolder+string(filepath.Separator))
		reports = append(reports, conformanceReport{r, filepath.ToSlash(below)})
	}
	slices.SortStableFunc(reports, func(a, b conformanceReport) int {
		return cmp.Or(strings.Compare(b.Suite, a.Suite), strings.Compare(a.path, b.path)) // the newest suite first
	})
	return reports
}

// conformanceTable is what docs/conformance-results.md says of the reports: figures and names, what they are too old
// for, and which features of Kubernetes they prove.
func conformanceTable(reports []conformanceReport) string {
	var b strings.Builder
	list := func(features []string) string { return tableCell(strings.Join(features, ", ")) }
	b.WriteString("| proxy | mode | core | extended | fails at | lacks | kernel | suite | older than |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range reports {
		_, failed, lacks := r.Features()
		fmt.Fprintf(&b, "| [%s %s](../testing/conformance/reports/%s) | %s | %v | %v | %s | %s | %s | %s | %s "+
			"|\n", tableCell(r.Implementation.Name),
			tableCell(r.Implementation.Version), r.path, tableCell(r.Implementation.Mode), r.Counts(report.Core),
			r.Counts(report.Extended), list(failed), list(lacks), tableCell(r.Kernel), tableCell(r.Suite),
			tableCell(olderThan(r, reports)))
	}
	b.WriteString("\n" + newerCases(reports) + "\n")
	b.WriteString(supportTable(reports))
	return b.String()
}

// newerCases names the cases that came with each version of the suite, which reports of older ones lack.
func newerCases(reports []conformanceReport) string {
	lacking := map[string][]string{} // by the version of a suite: what all of its reports lack
	for _, r := range reports {
		newer := r.Newer()
		if before, known := lacking[r.Suite]; known {
			newer = slices.DeleteFunc(newer, func(name string) bool { return !slices.Contains(before, name) })
		}
		lacking[r.Suite] = newer
	}
	var b strings.Builder
	b.WriteString("Cases that older reports lack:\n\n")
	version, listed := report.SuiteVersion, map[string]bool{}
	for _, suite := range slices.Backward(slices.Sorted(maps.Keys(lacking))) {
		fresh := slices.DeleteFunc(lacking[suite], func(name string) bool { return listed[name] })
		for _, name := range fresh {
			listed[name] = true
		}
		if len(fresh) > 0 {
			fmt.Fprintf(&b, "- of suite %s, what came with %s: \"%s\"\n", suite, version, strings.Join(fresh, "\", \""))
		}
		version = suite
	}
	return b.String()
}

// olderThan says what came after a report: cases of the suite, and versions of the program that were judged as well.
func olderThan(r conformanceReport, reports []conformanceReport) string {
	var since []string
	if n := len(r.Newer()); n > 0 {
		since = append(since, fmt.Sprintf("suite %s: %d cases more", report.SuiteVersion, n))
	}
	newest := r.Implementation.Version
	for _, other := range reports {
		if other.Implementation.Name == r.Implementation.Name && newer(other.Implementation.Version, newest) {
			newest = other.Implementation.Version
		}
	}
	if newest != r.Implementation.Version {
		since = append(since, newest)
	}
	if r.Implementation.Version == "main" {
		since = append(since, "what main has become since")
	}
	return strings.Join(since, "; ")
}

// newer reports whether one version is newer than another. Commits and branches are not comparable.
func newer(a, b string) bool {
	x, err := apiversion.ParseSemantic(a)
	y, otherErr := apiversion.ParseSemantic(b)
	return err == nil && otherErr == nil && y.LessThan(x)
}

// supportTable says which features of Kubernetes each program has, and which cases show that it has one only in part.
func supportTable(reports []conformanceReport) string {
	var b, parts strings.Builder
	b.WriteString("| feature | KEP |")
	var supports [][]report.Support // by report, then by feature
	for _, r := range reports {
		supports = append(supports, r.Support())
		i := r.Implementation
		fmt.Fprintf(&b, " %s %s, %s |", tableCell(i.Name), tableCell(i.Version), tableCell(i.Mode))
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(reports)) + "\n")
	for n, f := range report.ServiceFeatures() {
		var keps []string
		for _, number := range f.KEPs {
			keps = append(keps, fmt.Sprintf("[%d](https://kep.k8s.io/%[1]d)", number))
		}
		fmt.Fprintf(&b, "| %s | %s |", tableCell(f.Name), strings.Join(keps, ", "))
		wrong := map[string][]string{} // by the cases that are not right
		for i, r := range reports {
			s := supports[i][n]
			fmt.Fprintf(&b, " %s |", s.Answer)
			if s.Answer == report.InPart {
				cases := "\"" + strings.Join(s.Wrong, "\", \"") + "\""
				wrong[cases] = append(wrong[cases], r.Implementation.String())
			}
		}
		b.WriteString("\n")
		for _, cases := range slices.Sorted(maps.Keys(wrong)) {
			fmt.Fprintf(&parts, "- %s; %s: not right is %s\n", f.Name, strings.Join(wrong[cases], "; "), cases)
		}
	}
	return b.String() + "\nIn part:\n\n" + parts.String()
}

// featureTable says in which features the reports of the newest suite differ, with the cases of each, and which
// features all have.
func featureTable(reports []conformanceReport) string {
	newest := reports[0].Suite
	reports = slices.DeleteFunc(slices.Clone(reports), func(r conformanceReport) bool { return r.Suite != newest })
	cases, answers := map[string][]string{}, map[string][]string{} // by feature
	var b strings.Builder
	b.WriteString("| feature |")
	for _, r := range reports {
		fmt.Fprintf(&b, " %s %s, %s |", tableCell(r.Implementation.Name), tableCell(r.Implementation.Version),
			tableCell(r.Implementation.Mode))
		for _, result := range r.Results {
			if result.Profile == report.Extended && !slices.Contains(cases[result.Feature], result.Case) {
				cases[result.Feature] = append(cases[result.Feature], result.Case)
			}
		}
	}
	for feature := range cases {
		for _, r := range reports {
			answers[feature] = append(answers[feature], featureAnswer(r, feature))
		}
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(reports)) + "\n")
	alike := map[string][]string{} // by the answer of all
	for _, feature := range slices.Sorted(maps.Keys(cases)) {
		if same := slices.Compact(slices.Clone(answers[feature])); len(same) == 1 {
			alike[same[0]] = append(alike[same[0]], "`"+tableCell(feature)+"`")
			continue
		}
		slices.Sort(cases[feature])
		fmt.Fprintf(&b, "| `%s`: %s | %s |\n", tableCell(feature), tableCell(strings.Join(cases[feature], "; ")),
			strings.Join(answers[feature], " | "))
	}
	for _, answer := range slices.Sorted(maps.Keys(alike)) {
		fmt.Fprintf(&b, "\n%s%s for all of them: %s\n", strings.ToUpper(answer[:1]), answer[1:],
			strings.Join(alike[answer], ", "))
	}
	return b.String()
}

// featureAnswer says whether a report shows that a program has a feature.
func featureAnswer(r conformanceReport, feature string) string {
	has, fails, lacks := r.Features()
	switch {
	case slices.Contains(has, feature):
		return "yes"
	case slices.Contains(lacks, feature):
		return "no"
	case !slices.Contains(fails, feature):
		return "not known"
	case slices.ContainsFunc(r.Results, func(result report.Result) bool {
		return result.Feature == feature && (result.Verdict == report.Passed || result.Verdict == report.Slow)
	}):
		return "in part"
	}
	return "no"
}

// shown are the reports that the repository's README names.
func shown() []string {
	return []string{"0.3/kube-proxy-lib/main-nftables.yaml", "0.3/kube-proxy/v1.37.2-nftables.yaml",
		"0.1/kube-router/v2.1.0-ipvs.yaml"}
}

// shortTable is what it says of them, and of how many there are.
func shortTable(reports []conformanceReport) string {
	var b strings.Builder
	b.WriteString("| proxy | mode | core | extended |\n|---|---|---|---|\n")
	for _, path := range shown() {
		r := reports[slices.IndexFunc(reports, func(r conformanceReport) bool { return r.path == path })]
		fmt.Fprintf(&b, "| [%s %s](testing/conformance/reports/%s) | %s | %v | %v |\n", tableCell(r.Implementation.Name),
			tableCell(r.Implementation.Version), r.path, tableCell(r.Implementation.Mode), r.Counts(report.Core),
			r.Counts(report.Extended))
	}
	programs, modes := map[string]bool{}, map[string]bool{}
	for _, r := range reports {
		programs[r.Implementation.Name], modes[r.Implementation.Mode] = true, true
	}
	fmt.Fprintf(&b, "\n[All %d reports](docs/conformance-results.md) are of %d programs in %d modes.\n",
		len(reports), len(programs), len(modes))
	return b.String()
}

func tableCell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(report.Clean(text))
}

// madeFromReports compares a page with what a test makes from reports. That part of it is between two comments, of
// which the first names the test.
func madeFromReports(t *testing.T, path, made string) {
	t.Helper()
	begin, end := "<!-- made from the reports by "+t.Name()+" -->\n\n", "\n<!-- end of what is made -->\n"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	require.True(t, found, path)
	_, after, found := strings.Cut(rest, end)
	require.True(t, found, path)
	fm.Golden(t, path, before+begin+made+end+after)
}

// canBeRepeated: a report has the command, without folders that readers do not have.
func canBeRepeated(t *testing.T, path, command string) {
	t.Helper()
	assert.NotEmpty(t, command, "%s cannot be repeated", path)
	for _, place := range []string{"/tmp/", "/root/", "/home/", "/work/"} {
		assert.NotContains(t, command, place, "%s: a folder that readers do not have", path)
	}
}

// TestTheConformanceTables: two pages say what the reports say. With FAKEMODEL_UPDATE=1 that is made anew.
func TestTheConformanceTables(t *testing.T) {
	for path, table := range map[string]func([]conformanceReport) string{
		"conformance-results.md": conformanceTable,
		"../README.md":           shortTable,
	} {
		madeFromReports(t, path, table(conformanceReports(t)))
	}
}

// TestTheTableOfFeatures: the page says in which features the newest reports differ.
func TestTheTableOfFeatures(t *testing.T) {
	madeFromReports(t, "conformance-results.md", featureTable(conformanceReports(t)))
}

// TestTheCoreCasesInREADME: the sentence about this project counts the cases as its report does.
func TestTheCoreCasesInREADME(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	reports := conformanceReports(t)
	i := slices.IndexFunc(reports, func(r conformanceReport) bool { return r.path == shown()[0] })
	core := reports[i].Counts(report.Core)
	assert.Contains(t, strings.Join(strings.Fields(string(text)), " "),
		fmt.Sprintf("**%d of %d** core cases", core.Passed, core.Total()))
}

// TestConformanceReportsAreWhereTheyBelong: by suite and name, and each can be repeated.
func TestConformanceReportsAreWhereTheyBelong(t *testing.T) {
	for _, r := range conformanceReports(t) {
		i := r.Implementation
		file := strings.ReplaceAll(strings.Trim(i.Version+"-"+i.Mode, "-"), " ", "-")
		assert.Equal(t, fmt.Sprintf("%s/%s/%s.yaml", r.Suite, i.Name, file), r.path)
		canBeRepeated(t, r.path, i.Command)
		assert.Empty(t, r.Problem, "%s is not complete", r.path)
	}
}
