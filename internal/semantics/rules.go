// Package semantics has the texts of the rules in docs/semantics.md.
package semantics

import (
	"embed"
	"iter"
	"regexp"
	"strings"
)

// files has rules.txt: the rules of docs/semantics.md, one per line, because a package can embed only files below its
// own folder. A test keeps it up to date.
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

// Text returns the Markdown text of a rule such as "S27", or "".
func Text(rule string) string {
	for number, text := range All() {
		if number == rule {
			return text
		}
	}
	return ""
}

// Plain returns the texts of all rules by number, without Markdown markup.
func Plain() map[string]string {
	plain, link := map[string]string{}, regexp.MustCompile(`\[([^\]]+)\]\([^)]*\)`)
	marks := strings.NewReplacer("*", "", "`", "")
	for number, text := range All() {
		plain[number] = link.ReplaceAllString(marks.Replace(text), "$1")
	}
	return plain
}
