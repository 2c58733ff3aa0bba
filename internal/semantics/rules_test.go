package semantics_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/semantics"
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

// TestTheDocumentSaysWhereEachRuleIs: the table of packages at the beginning has them all.
func TestTheDocumentSaysWhereEachRuleIs(t *testing.T) {
	text, err := os.ReadFile("../../docs/semantics.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(text), "| rules | where |")
	table, _, _ = strings.Cut(table, "\n\n")
	placed := map[string]bool{}
	for _, m := range regexp.MustCompile(`S(\d+)( to S(\d+)|[a-z]?)`).FindAllStringSubmatch(table, -1) {
		placed[m[0]] = true
		first, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		for last, _ := strconv.Atoi(m[3]); first <= last; first++ {
			placed["S"+strconv.Itoa(first)] = true
		}
	}
	for number := range semantics.All() {
		assert.True(t, placed[number], "docs/semantics.md does not say which package implements %s", number)
	}
}

func TestText(t *testing.T) {
	assert.Equal(t, "Hairpin: a pod that reaches itself through a service is masqueraded.", semantics.Text("S29"))
	assert.Empty(t, semantics.Text("S2 "))
	assert.Empty(t, semantics.Text(""))
	assert.Empty(t, semantics.Text("S999"))
	assert.NotEqual(t, semantics.Text("S25"), semantics.Text("S25a"))
}

func TestPlainTextHasNoMarks(t *testing.T) {
	plain := semantics.Plain()
	n := 0
	for number := range semantics.All() {
		n++
		require.NotEmpty(t, plain[number], number)
		assert.NotRegexp(t, "[*`]|\\]\\(", plain[number], number)
	}
	assert.Len(t, plain, n)
	require.Contains(t, semantics.Text("S1"), "**depart**")
}
