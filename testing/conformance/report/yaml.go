package report

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// The kind of the document that WriteYAML writes.
const (
	APIVersion = "conformance.kube-proxy-lib.sigs.k8s.io/v1alpha1"
	Kind       = "ServiceProxyReport"
)

// document is a report as a file: with its kind, and with what a reader would otherwise have to count.
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Report     `json:",inline"`
	Summary    summary `json:"summary"`
	// Rules has the texts of the rules that failures name.
	Rules map[string]string `json:"rules,omitempty"`
}

type summary struct {
	Profiles            []profileSummary `json:"profiles"`
	SupportedFeatures   []string         `json:"supportedFeatures,omitempty"`
	FailedFeatures      []string         `json:"failedFeatures,omitempty"`
	UnsupportedFeatures []string         `json:"unsupportedFeatures,omitempty"`
}

type profileSummary struct {
	Name   Profile `json:"name"`
	Result string  `json:"result"`
	Counts `json:",inline"`
}

func (r *Report) summary() summary {
	var s summary
	for _, p := range Profiles() {
		if p == Comparison && r.Counts(p).Total() == 0 {
			continue
		}
		s.Profiles = append(s.Profiles, profileSummary{Name: p, Result: r.Conclusion(p), Counts: r.Counts(p)})
	}
	s.SupportedFeatures, s.FailedFeatures, s.UnsupportedFeatures = r.Features()
	return s
}

// WriteYAML writes a report, with the counts and features that follow from its results. The same results make the same
// text, in whatever order they are.
func WriteYAML(w io.Writer, r *Report) error {
	r = r.cleaned()
	if err := r.validate(); err != nil {
		return err
	}
	d := document{APIVersion: APIVersion, Kind: Kind, Report: *r, Summary: r.summary(), Rules: r.failedRules()}
	d.Results = r.sorted()
	text, err := yaml.Marshal(d)
	if err != nil {
		return fmt.Errorf("report of %s: %w", r.Implementation.Name, err)
	}
	_, err = w.Write(text)
	return err
}

// Read reads what WriteYAML writes. It is an error if the counts or features in it do not follow from its results.
func Read(text []byte) (*Report, error) {
	var d document
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	if d.APIVersion != APIVersion || d.Kind != Kind {
		return nil, fmt.Errorf("report: it is a %q of %q, not a %q of %q", d.Kind, d.APIVersion, Kind, APIVersion)
	}
	r := &d.Report
	if err := r.validate(); err != nil {
		return nil, err
	}
	if got := r.summary(); !reflect.DeepEqual(got, d.Summary) {
		return nil, fmt.Errorf("report of %s: its summary is %+v, but its results make %+v", r.Implementation.Name,
			d.Summary, got)
	}
	return r, nil
}

// validate returns what is wrong with a report.
func (r *Report) validate() error {
	var errs []error
	seen := map[string]bool{}
	for _, result := range r.Results {
		if seen[result.Case] {
			errs = append(errs, fmt.Errorf("case %q has two results", result.Case))
		}
		seen[result.Case] = true
		if !slices.Contains(Profiles(), result.Profile) {
			errs = append(errs, fmt.Errorf("case %q: unknown profile %q", result.Case, result.Profile))
		}
		if !slices.Contains(Verdicts(), result.Verdict) {
			errs = append(errs, fmt.Errorf("case %q: unknown verdict %q", result.Case, result.Verdict))
		}
		if (result.Profile == Extended) != (result.Feature != "") {
			errs = append(errs, fmt.Errorf("case %q: only cases of the profile extended have a feature, and all have one",
				result.Case))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("report of %s: %w", r.Implementation.Name, errors.Join(errs...))
}

// sorted returns the results by profile, feature and name.
func (r *Report) sorted() []Result {
	list := slices.Clone(r.Results)
	slices.SortStableFunc(list, func(a, b Result) int {
		if c := slices.Index(Profiles(), a.Profile) - slices.Index(Profiles(), b.Profile); c != 0 {
			return c
		}
		if c := strings.Compare(a.Feature, b.Feature); c != 0 {
			return c
		}
		return strings.Compare(a.Case, b.Case)
	})
	return list
}

// failedRules returns the texts of the rules that failed results are about or name as reasons.
func (r *Report) failedRules() map[string]string {
	rules := map[string]string{}
	add := func(rule string) {
		if text := RuleText(rule); text != "" {
			rules[rule] = text
		}
	}
	for _, result := range r.Results {
		if result.Verdict != Failed {
			continue
		}
		for _, rule := range result.Rules {
			add(rule)
		}
		for _, f := range result.Failures {
			for _, w := range f.Want {
				for _, reason := range w.Reasons {
					add(reason.Rule)
				}
			}
		}
	}
	return rules
}
