package report_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// TestRulesAreThoseOfTheDocument: rules.txt is docs/semantics.md, a rule to a line. A package can embed only files
// below its own folder.
func TestRulesAreThoseOfTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../../docs/semantics.md")
	require.NoError(t, err)
	var rules []string
	start := regexp.MustCompile(`^- \*\*(S\d+a?)\*\* (.*)`)
	open := false // the line before belongs to a rule
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if m := start.FindStringSubmatch(line); m != nil {
			rules, open = append(rules, m[1]+" "+m[2]), true
			continue
		}
		if open = open && strings.HasPrefix(line, "  "); open {
			rules[len(rules)-1] += " " + strings.TrimSpace(line)
		}
	}
	require.Greater(t, len(rules), 50)
	fm.Golden(t, "rules.txt", strings.Join(rules, "\n")+"\n")
}

func TestRuleText(t *testing.T) {
	assert.Equal(t, "Hairpin: a pod that reaches itself through a service is masqueraded.", report.RuleText("S29"))
	assert.Empty(t, report.RuleText("S2 "))
	assert.Empty(t, report.RuleText(""))
	assert.Empty(t, report.RuleText("S999"))
	assert.NotEqual(t, report.RuleText("S25"), report.RuleText("S25a"))
}

func TestRuleList(t *testing.T) {
	assert.Equal(t, []string{"S25", "S27", "S36a"}, report.RuleList("S25, S27,S36a"))
	assert.Empty(t, report.RuleList(""))
}
