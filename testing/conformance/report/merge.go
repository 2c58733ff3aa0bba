package report

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// nonePassed is the reason for a feature to be unsupported although its cases were tried.
const nonePassed = "none of its cases passed"

// CleanUp is the feature of a proxy that has a clean-up command.
const CleanUp = "CleanUp"

// Merge merges the reports of a program's runs, each with some of the cases. It fails if two runs tried the same case,
// unless one of them did not judge it, or if they differ in the program, the kernel or the suite. The merged report has
// the commands of all runs, the first run's seed and the busiest run's machine, and no speed figures.
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
		if m := merged.Machine; r.Machine != nil && (m == nil || r.Machine.Others+r.Machine.Steal > m.Others+m.Steal) {
			merged.Machine = r.Machine
		}
		for _, result := range r.Results {
			place, known := places[result.Case]
			switch {
			case !known:
				places[result.Case] = len(merged.Results)
				merged.Results = append(merged.Results, result)
			case result.Verdict == NotRun:
				if result.Interrupted && merged.Results[place].Verdict == NotRun {
					merged.Results[place] = result // the other run was not to run it
				}
			case merged.Results[place].Verdict == NotRun, merged.Results[place].Verdict == NotJudged:
				merged.Results[place] = result
			case result.Verdict == NotJudged:
			case merged.Results[place].Verdict != Unsupported || result.Verdict != Unsupported:
				return nil, fmt.Errorf("case %q was run twice", result.Case)
			}
		}
	}
	merged.Implementation.Command = strings.Join(slices.Compact(commands), "\n")
	merged.Absent()
	return merged, merged.validate()
}

// mergeable returns an error if another report cannot be merged with this one.
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

// Absent marks a feature as unsupported, not failed, if all of its tried cases failed. [CleanUp] is an exception: its
// cases are tried only with a clean-up command.
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
		case result.Why == nonePassed && works[result.Feature]: // a case of another run passed
			result.Verdict, result.Why = Failed, "it did not happen as it should"
		}
	}
}
