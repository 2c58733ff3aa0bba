package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	reportLink = regexp.MustCompile(
		`\[([\w.-]+/[\w.-]+)#(\d+)\]\(https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)\)`)
	heldByTest = regexp.MustCompile("`([\\w./-]+)\\.(Test\\w+)`")
	heldByCase = regexp.MustCompile(`\*([^*]+)\*`)
)

// TestEveryReportIsHeldByATest: each row of reports.md names public reports, once, and tests or cases that exist.
func TestEveryReportIsHeldByATest(t *testing.T) {
	page, err := os.ReadFile("reports.md")
	require.NoError(t, err)
	cases := sources(t, "../testing/conformance/internal/cases/*.go")
	list := "\n" + sources(t, "../testing/conformance/report/cases.txt")
	seen := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 3 || !strings.Contains(cells[1], "https://") {
			assert.NotContains(t, line, "](https://github.com", "a report outside of the table")
			continue
		}
		require.Len(t, cells, 5, line)
		links := reportLink.FindAllStringSubmatch(cells[1], -1)
		assert.Len(t, links, strings.Count(cells[1], "https://"), "malformed: %s", cells[1])
		for _, m := range links {
			assert.Equal(t, m[1]+"#"+m[2], m[3]+"#"+m[4], "the text of a link is not where it leads")
			assert.False(t, seen[m[0]], "%s is there twice", m[0])
			seen[m[0]] = true
		}
		held := 0
		for _, m := range heldByTest.FindAllStringSubmatch(cells[3], -1) {
			held++
			tests := sources(t, filepath.Join("..", m[1], "*_test.go"))
			assert.True(t, strings.Contains(tests, "\nfunc "+m[2]+"(t *testing.T)"), "no test %s.%s", m[1], m[2])
		}
		for _, m := range heldByCase.FindAllStringSubmatch(cells[3], -1) {
			held++
			// A name may remain elsewhere in the sources after its case has gone. The list lacks those not for programs.
			assert.True(t, strings.Contains(list, "\n"+m[1]+"\n") || strings.Contains(cases, `{Name: "`+m[1]+`"`),
				"no case %q", m[1])
		}
		assert.NotZero(t, held, "held by nothing: %s", line)
		assert.Equal(t, held, 1+strings.Count(cells[3], ";"), "not a list of tests and cases: %s", cells[3])
	}
	require.Greater(t, len(seen), 40)
}

// sources returns the text of the files that a pattern matches.
func sources(t *testing.T, pattern string) string {
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, files, pattern)
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}
