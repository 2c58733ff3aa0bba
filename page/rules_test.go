package page

import (
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write assets/rules.json")

var ruleStart = regexp.MustCompile(`^- \*\*(S\d+[a-z]?)\*\* `)

// rulesOf returns the texts of the rules in docs/semantics.md, without line breaks and marks of Markdown.
func rulesOf(document string) map[string]string {
	rules, name := map[string]string{}, ""
	for line := range strings.SplitSeq(document, "\n") {
		switch m := ruleStart.FindStringSubmatch(line); {
		case m != nil:
			name = m[1]
			rules[name] = strings.TrimPrefix(line, m[0])
		case strings.HasPrefix(line, "  ") && name != "":
			rules[name] += " " + strings.TrimSpace(line)
		default:
			name = ""
		}
	}
	link := regexp.MustCompile(`\[([^\]]+)\]\([^)]*\)`)
	for name, text := range rules {
		rules[name] = link.ReplaceAllString(strings.NewReplacer("*", "", "`", "").Replace(text), "$1")
	}
	return rules
}

// The page has the text of every rule as the documentation has it: go test ./page -run Rules -update
func TestTheRulesAreThoseOfTheDocumentation(t *testing.T) {
	document, err := os.ReadFile("../docs/semantics.md")
	require.NoError(t, err)
	want := rulesOf(string(document))
	if *update {
		text, err := json.MarshalIndent(want, "", "\t")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile("assets/rules.json", append(text, '\n'), 0o644))
	}
	text, err := assets.ReadFile("assets/rules.json")
	if *update {
		text, err = os.ReadFile("assets/rules.json")
	}
	require.NoError(t, err)
	got := map[string]string{}
	require.NoError(t, json.Unmarshal(text, &got))
	for name := range want {
		if want[name] != got[name] {
			t.Errorf("the page has another text of %s: go test ./page -run Rules -update", name)
		}
	}
	assert.Equal(t, "Hairpin: a pod that reaches itself through a service is masqueraded.", got["S29"])
	assert.Equal(t, "application/json", newRig(t, nil, Options{}).request("/rules.json").Header().Get("Content-Type"))
	assert.Equal(t, strings.Count(string(document), "\n- **S"), len(got))
	assert.NotContains(t, got["S25"], "*")

	// Every rule that an answer or a picture may name is among them.
	for _, file := range []string{"service.go", "../oracle/oracle.go", "../oracle/ask.go", "../oracle/flow.go"} {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`"(S\d+[a-z]?)"`).FindAllStringSubmatch(string(source), -1) {
			assert.Contains(t, got, m[1], file)
		}
	}
}
