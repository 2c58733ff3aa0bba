package report

import (
	"strings"

	"sigs.k8s.io/kube-proxy-lib/internal/rules"
)

// RuleText returns the text of a rule of docs/semantics.md, for example of "S27", in Markdown; "" if there is none.
func RuleText(rule string) string { return rules.Text(rule) }

// RuleList splits a list of rules, for example "S25, S27".
func RuleList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}
