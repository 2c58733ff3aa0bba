package rules_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/rules"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// rules.txt is docs/semantics.md, a rule to a line.
func TestRulesAreThoseOfTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/semantics.md")
	require.NoError(t, err)
	var list []string
	start := regexp.MustCompile(`^- \*\*(S\d+[a-z]?)\*\* (.*)`)
	open := false // the line before belongs to a rule
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if m := start.FindStringSubmatch(line); m != nil {
			list, open = append(list, m[1]+" "+m[2]), true
			continue
		}
		if open = open && strings.HasPrefix(line, "  "); open {
			list[len(list)-1] += " " + strings.TrimSpace(line)
		}
	}
	require.Greater(t, len(list), 50)
	fm.Golden(t, "rules.txt", strings.Join(list, "\n")+"\n")
}

func TestText(t *testing.T) {
	assert.Equal(t, "Hairpin: a pod that reaches itself through a service is masqueraded.", rules.Text("S29"))
	assert.Empty(t, rules.Text("S2 "))
	assert.Empty(t, rules.Text(""))
	assert.Empty(t, rules.Text("S999"))
	assert.NotEqual(t, rules.Text("S25"), rules.Text("S25a"))
}

func TestPlainTextHasNoMarks(t *testing.T) {
	plain := rules.Plain()
	n := 0
	for number := range rules.All() {
		n++
		require.NotEmpty(t, plain[number], number)
		assert.NotRegexp(t, "[*`]|\\]\\(", plain[number], number)
	}
	assert.Len(t, plain, n)
	require.Contains(t, rules.Text("S1"), "**depart**")
}
