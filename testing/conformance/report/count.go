package report

import (
	"slices"
)

// Counts says how many cases ended with each verdict.
type Counts struct {
	// The numbers of cases, by verdict.
	Passed      int `json:"passed"`
	Slow        int `json:"slow"`
	Failed      int `json:"failed"`
	Unsupported int `json:"unsupported"`
	NotRun      int `json:"notRun"`
}

// Total returns the number of cases.
func (c Counts) Total() int { return c.Passed + c.Slow + c.Failed + c.Unsupported + c.NotRun }

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
	case NotRun:
		return c.NotRun
	}
	return 0
}

// Counts counts the results of a profile.
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
		case NotRun:
			c.NotRun++
		}
	}
	return c
}

// Conclusion is what a report says of a profile as a whole: "success", if nothing failed and everything was tried;
// "partial", if nothing failed, but something was not tried or, in the profile core, is unsupported; or "failure". In
// the profile note nothing fails: it is "success" or "partial". A run that ended early is never a success.
func (r *Report) Conclusion(p Profile) string {
	switch c := r.Counts(p); {
	case p != Note && (c.Failed > 0 || r.Problem != ""):
		return "failure"
	case c.NotRun > 0 || p == Core && c.Unsupported > 0 || r.Problem != "":
		return "partial"
	}
	return "success"
}

// Features returns the features of the profile extended, sorted: those with a case that passed and none that failed;
// those with a case that failed; and those that the proxy lacks. What was not run is in neither.
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
