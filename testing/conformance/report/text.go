package report

import (
	"fmt"
	"io"
	"strings"
)

// WriteText writes a summary for a terminal: what was tested, the counts of each profile, what failed and was slow, and
// what the proxy lacks. With details it has everything about each failure, otherwise one line for each failed case.
func WriteText(w io.Writer, r *Report, details bool) error {
	r = r.cleaned()
	var b strings.Builder
	fmt.Fprintf(&b, "%s, suite %s, kernel %s, seed %d\n", r.Title(), oneLine(r.Suite), oneLine(r.Kernel), r.Seed)
	if r.Problem != "" {
		fmt.Fprintf(&b, "\nThe run ended early: %s\n", oneLine(r.Problem))
		if r.Log != "" {
			fmt.Fprintf(&b, "The program's last output:\n%s\n", indent(r.Log, "  "))
		}
	}
	b.WriteString("\n")
	for _, p := range Profiles() {
		if c := r.Counts(p); c.Total() > 0 {
			fmt.Fprintf(&b, "%-9s %-8s %s\n", p, r.Conclusion(p), c)
		}
	}
	for _, v := range []Verdict{Failed, Slow} {
		for _, result := range r.sorted() {
			if result.Verdict == v {
				result.print(&b, details)
			}
		}
	}
	if _, _, lacks := r.Features(); len(lacks) > 0 {
		fmt.Fprintf(&b, "\nnot supported: %s\n", oneLine(strings.Join(lacks, ", ")))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String returns the name, the version and the mode.
func (i Implementation) String() string {
	text := oneLine(i.Name)
	if i.Version != "" {
		text += " " + oneLine(i.Version)
	}
	if i.Mode != "" {
		text += ", mode " + oneLine(i.Mode)
	}
	return text
}

// String returns for example "40 passed, 1 failed", without what is 0.
func (c Counts) String() string {
	var parts []string
	for _, v := range Verdicts() {
		if n := c.Of(v); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// print writes a result in one line or, with details, with all its failures.
func (r Result) print(b *strings.Builder, details bool) {
	fmt.Fprintf(b, "\n%s: %s", strings.ToUpper(string(r.Verdict)), oneLine(r.Case))
	if len(r.Rules) > 0 {
		fmt.Fprintf(b, " (%s)", oneLine(strings.Join(r.Rules, ", ")))
	}
	b.WriteString("\n")
	if r.Why != "" {
		fmt.Fprintf(b, "  %s\n", oneLine(r.Why))
	}
	if details {
		b.WriteString(r.details("  "))
	}
}

// details returns everything about the failures of a result.
func (r Result) details(margin string) string {
	var b strings.Builder
	for _, f := range r.Failures {
		b.WriteString("\n")
		if f.Step != "" {
			fmt.Fprintf(&b, "after:  %s\n", oneLine(f.Step))
		}
		if f.Flow != nil {
			fmt.Fprintf(&b, "flow:   %s\n", oneLine(f.Flow.String()))
		}
		fmt.Fprintf(&b, "seen:   %s\n", strings.TrimSpace(indent(f.Seen, "        ")))
		for i, want := range f.Want {
			fmt.Fprintf(&b, "%-8s%s\n", []string{"wanted:", "or:"}[min(i, 1)], oneLine(want.What))
			for _, reason := range want.Reasons {
				fmt.Fprintf(&b, "        - %s\n", oneLine(reason.String()))
			}
		}
		if len(f.Path) > 0 {
			b.WriteString("path:\n")
			for _, hop := range f.Path {
				fmt.Fprintf(&b, "        %s %s: %s\n", map[bool]string{true: "!", false: "-"}[hop.Wrong], oneLine(hop.At),
					oneLine(hop.Text))
			}
		}
		if f.Objects != "" {
			fmt.Fprintf(&b, "objects:\n%s\n", indent(f.Objects, "  "))
		}
	}
	if r.More > 0 {
		fmt.Fprintf(&b, "\n... and %d more\n", r.More)
	}
	if r.Ruleset != "" {
		fmt.Fprintf(&b, "\nthe ruleset:\n%s\n", indent(r.Ruleset, "  "))
	}
	if b.Len() == 0 {
		return ""
	}
	return indent(b.String(), margin) + "\n"
}

// indent puts a margin before each line of a text that is not empty.
func indent(text, margin string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = margin + line
		}
	}
	return strings.Join(lines, "\n")
}
