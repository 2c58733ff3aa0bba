package report

import (
	"fmt"
	"slices"
	"strings"
)

// Counts has the number of cases by verdict.
type Counts struct {
	// The numbers of cases, by verdict.
	Passed      int `json:"passed"`
	Slow        int `json:"slow"`
	Failed      int `json:"failed"`
	Unsupported int `json:"unsupported"`
	NotJudged   int `json:"notJudged,omitempty"`
	NotRun      int `json:"notRun"`
}

// Total returns the number of all cases.
func (c Counts) Total() int {
	return c.Passed + c.Slow + c.Failed + c.Unsupported + c.NotJudged + c.NotRun
}

// Of returns the number of cases with a verdict.
func (c Counts) Of(v Verdict) int {
	switch v {
	case Passed:
		return c.Passed
	case Slow:
		return c.Slow
	case Failed:
		return c.Failed
	case Unsupported:
		return c.Unsupported
	case NotJudged:
		return c.NotJudged
	case NotRun:
		return c.NotRun
	}
	return 0
}

// String returns for example "40 passed, 1 failed". It leaves out zeros.
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

// Counts counts a profile's results.
func (r *Report) Counts(p Profile) (c Counts) {
	for _, result := range r.Results {
		if result.Profile != p {
			continue
		}
		switch result.Verdict {
		case Passed:
			c.Passed++
		case Slow:
			c.Slow++
		case Failed:
			c.Failed++
		case Unsupported:
			c.Unsupported++
		case NotJudged:
			c.NotJudged++
		case NotRun:
			c.NotRun++
		}
	}
	return c
}

// Conclusion summarizes a profile: "failure" if a case failed; "partial" if none failed, but some were not run, not
// judged or, in the profile core, are unsupported; otherwise "success". The profile note is never a failure. A run that
// ended early is never a success.
func (r *Report) Conclusion(p Profile) string {
	switch c := r.Counts(p); {
	case p != Note && (c.Failed > 0 || r.Problem != ""):
		return "failure"
	case c.NotRun > 0 || c.NotJudged > 0 || p == Core && c.Unsupported > 0 || r.Problem != "":
		return "partial"
	}
	return "success"
}

// Features returns the sorted features of the profile extended: supported, with a passed and no failed case; failed,
// with a failed case; and unsupported by the proxy. Features whose cases were not run are in none of the lists, nor are
// those without a failed case of which one was not judged.
func (r *Report) Features() (supported, failed, unsupported []string) {
	verdicts := map[string]map[Verdict]bool{}
	for _, result := range r.Results {
		if result.Profile != Extended {
			continue
		}
		if verdicts[result.Feature] == nil {
			verdicts[result.Feature] = map[Verdict]bool{}
		}
		verdicts[result.Feature][result.Verdict] = true
	}
	for feature, of := range verdicts {
		switch {
		case of[Failed]:
			failed = append(failed, feature)
		case of[NotJudged]:
		case of[Unsupported]:
			unsupported = append(unsupported, feature)
		case of[Passed], of[Slow]:
			supported = append(supported, feature)
		}
	}
	slices.Sort(supported)
	slices.Sort(failed)
	slices.Sort(unsupported)
	return supported, failed, unsupported
}
