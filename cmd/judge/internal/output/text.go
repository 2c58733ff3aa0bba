package output

import (
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// Text writes a summary for a terminal: the implementation, the machine, the command, the counts of each profile, the
// cases that failed, were slow or not judged, and features that the proxy lacks. With all it prints every failure in
// full, otherwise one line per failed case.
func Text(w io.Writer, r *report.Report, all bool) error {
	r, err := r.Normalized()
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, suite %s, kernel %s, seed %d\n", r.Title(), oneLine(r.Suite), oneLine(r.Kernel), r.Seed)
	if n := len(r.Newer()); n > 0 {
		fmt.Fprintf(&b, "of an older suite: version %s has %d cases more\n", report.SuiteVersion, n)
	}
	if r.Machine != nil {
		fmt.Fprintf(&b, "%v\n", r.Machine)
	}
	if r.Implementation.Command != "" {
		fmt.Fprintf(&b, "%s\n", r.Implementation.Command)
	}
	if r.Problem != "" {
		fmt.Fprintf(&b, "\nThe run ended early: %s\n", oneLine(r.Problem))
		if r.Log != "" {
			fmt.Fprintf(&b, "The program's last output:\n%s\n", indent(r.Log, "  "))
		}
	}
	b.WriteString("\n")
	for _, p := range report.Profiles() {
		if c := r.Counts(p); c.Total() > 0 {
			fmt.Fprintf(&b, "%-9s %-8s %s\n", p, r.Conclusion(p), c)
		}
	}
	for _, v := range []report.Verdict{report.Failed, report.Slow, report.NotJudged} {
		for _, result := range r.Results {
			if result.Verdict == v {
				printResult(&b, result, all)
			}
		}
	}
	if _, _, lacks := r.Features(); len(lacks) > 0 {
		fmt.Fprintf(&b, "\nnot supported: %s\n", oneLine(strings.Join(lacks, ", ")))
	}
	printSupport(&b, r.Support())
	_, err = io.WriteString(w, b.String())
	return err
}

// printSupport lists the features of Kubernetes for which there is an answer, and counts the others.
func printSupport(b *strings.Builder, list []report.Support) {
	unknown := 0
	for i, s := range list {
		if s.Answer == report.NotKnown {
			unknown++
			continue
		}
		if unknown == i {
			b.WriteString("\nFeatures of Kubernetes, as the cases show them:\n")
		}
		fmt.Fprintf(b, "  %-9s %s\n", s.Answer, s.Title())
		for _, name := range s.Wrong {
			fmt.Fprintf(b, "            not right: %s\n", name)
		}
	}
	if 0 < unknown && unknown < len(list) {
		fmt.Fprintf(b, "  not known: %d more, because a case of theirs has no verdict\n", unknown)
	}
}

// printResult writes a result on one line or, with all, with its failures.
func printResult(b *strings.Builder, r report.Result, all bool) {
	fmt.Fprintf(b, "\n%s: %s", strings.ToUpper(string(r.Verdict)), oneLine(r.Case))
	if len(r.Rules) > 0 {
		fmt.Fprintf(b, " (%s)", oneLine(strings.Join(r.Rules, ", ")))
	}
	b.WriteString("\n")
	if r.Why != "" {
		fmt.Fprintf(b, "  %s\n", oneLine(r.Why))
	}
	if all {
		b.WriteString(Details(r, "  "))
	}
}

// Details formats the failures of a result, with a margin before each line; "" if it has none.
func Details(r report.Result, margin string) string {
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

// indent puts a margin before each non-empty line of a text.
func indent(text, margin string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = margin + line
		}
	}
	return strings.Join(lines, "\n")
}

// oneLine replaces each run of white space with a space.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
