package report

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// nonePassed is why a feature is unsupported that the proxy was tried for.
const nonePassed = "none of its cases passed"

// CleanUp is a feature that a proxy claims by a command for it.
const CleanUp = "CleanUp"

// Merge joins the reports of runs of one program, each with a part of the cases: of each case it has the result of the
// run that tried it. It is an error if two runs tried a case, or if they differ in what was tested, in the kernel or in
// the suite. The command repeats all runs, and the seed is that of the first one; figures of speed are left out.
func Merge(reports ...*Report) (*Report, error) {
	if len(reports) == 0 {
		return nil, errors.New("there are no reports to merge")
	}
	first := reports[0]
	merged := &Report{Implementation: first.Implementation, Kernel: first.Kernel, Suite: first.Suite, Seed: first.Seed}
	var commands []string
	places := map[string]int{}
	for _, r := range reports {
		if err := first.mergeable(r); err != nil {
			return nil, err
		}
		commands = append(commands, r.Implementation.Command)
		for _, result := range r.Results {
			place, known := places[result.Case]
			switch {
			case !known:
				places[result.Case] = len(merged.Results)
				merged.Results = append(merged.Results, result)
			case result.Verdict == NotRun:
			case merged.Results[place].Verdict == NotRun:
				merged.Results[place] = result
			case merged.Results[place].Verdict != Unsupported || result.Verdict != Unsupported:
				return nil, fmt.Errorf("case %q was run twice", result.Case)
			}
		}
	}
	merged.Implementation.Command = strings.Join(slices.Compact(commands), "\n")
	merged.Absent()
	return merged, merged.validate()
}

// mergeable returns why another report cannot be merged with this one.
func (r *Report) mergeable(o *Report) error {
	a, b := r.Implementation, o.Implementation
	a.Command, b.Command = "", ""
	switch {
	case a != b:
		return fmt.Errorf("reports of different programs: %v and %v", a, b)
	case r.Kernel != o.Kernel || r.Suite != o.Suite:
		return fmt.Errorf("reports of %v: kernel %s and suite %s, and kernel %s and suite %s", a, r.Kernel, r.Suite, o.Kernel,
			o.Suite)
	case r.Beside != nil || o.Beside != nil:
		return fmt.Errorf("reports of %v: comparisons cannot be merged", a)
	case r.Problem != "" || o.Problem != "":
		return fmt.Errorf("reports of %v: a run ended early: %s%s", a, r.Problem, o.Problem)
	}
	return nil
}

// Absent says of a feature that the proxy lacks it if all of its cases that were tried have failed: that is no failure,
// but for [CleanUp], which nobody tries without a command for it.
func (r *Report) Absent() {
	works := map[string]bool{}
	for _, result := range r.Results {
		works[result.Feature] = works[result.Feature] || result.Verdict == Passed || result.Verdict == Slow
	}
	for i := range r.Results {
		result := &r.Results[i]
		switch {
		case result.Profile != Extended:
		case result.Verdict == Failed && !works[result.Feature] && result.Feature != CleanUp:
			result.Verdict, result.Why = Unsupported, nonePassed
		case result.Why == nonePassed && works[result.Feature]: // in another run
			result.Verdict, result.Why = Failed, "it did not happen as it should"
		}
	}
}
