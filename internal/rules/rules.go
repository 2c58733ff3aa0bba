// Package rules has the texts of the rules in docs/semantics.md.
package rules

import (
	"embed"
	"iter"
	"regexp"
	"strings"
)

// files has rules.txt: the rules of docs/semantics.md, one to a line. A test keeps it so: a package can embed only
// files below its own folder.
//
//go:embed rules.txt
var files embed.FS

// All returns the numbers and texts of all rules, in Markdown, in the order of the document.
func All() iter.Seq2[string, string] {
	return func(yield func(number, text string) bool) {
		text, _ := files.ReadFile("rules.txt") // it is embedded
		for line := range strings.Lines(string(text)) {
			if number, text, _ := strings.Cut(line, " "); !yield(number, strings.TrimSpace(text)) {
				return
			}
		}
	}
}

// Text returns the text of a rule, for example of "S27", in Markdown; "" if there is none.
func Text(rule string) string {
	for number, text := range All() {
		if number == rule {
			return text
		}
	}
	return ""
}

// Plain returns the texts of all rules by number, without the marks of Markdown.
func Plain() map[string]string {
	plain, link := map[string]string{}, regexp.MustCompile(`\[([^\]]+)\]\([^)]*\)`)
	marks := strings.NewReplacer("*", "", "`", "")
	for number, text := range All() {
		plain[number] = link.ReplaceAllString(marks.Replace(text), "$1")
	}
	return plain
}
