package report

import (
	_ "embed" // for the texts of the rules
	"strings"
)

// rulesText has the rules of docs/semantics.md, one to a line. A test keeps it so.
//
//go:embed rules.txt
var rulesText string

// RuleText returns the text of a rule of docs/semantics.md, for example of "S27", in Markdown; "" if there is none.
func RuleText(rule string) string {
	for line := range strings.Lines(rulesText) {
		if number, text, _ := strings.Cut(line, " "); number == rule {
			return strings.TrimSpace(text)
		}
	}
	return ""
}

// RuleList splits a list of rules, for example "S25, S27".
func RuleList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}
