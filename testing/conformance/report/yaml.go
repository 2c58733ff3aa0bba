package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/internal/semantics"
)

// The kind and version of the YAML document.
const (
	apiVersion = "conformance.kube-proxy-lib.sigs.k8s.io/v1alpha1"
	kind       = "ServiceProxyReport"
)

// document is the YAML form of a report, with its kind and a summary of the results.
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Report     `json:",inline"`
	Summary    summary `json:"summary"`
	// Rules has the texts of the rules that failures mention.
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

// WriteYAML writes a report and a summary of its results. The output does not depend on the order of the results.
func WriteYAML(w io.Writer, r *Report) error {
	r, err := r.Normalized()
	if err != nil {
		return err
	}
	d := document{APIVersion: apiVersion, Kind: kind, Report: *r, Summary: r.summary(), Rules: r.FailedRules()}
	text, err := yaml.Marshal(d)
	if err != nil {
		return fmt.Errorf("report of %s: %w", r.Implementation.Name, err)
	}
	_, err = w.Write(text)
	return err
}

// Read reads the output of WriteYAML. It fails if the summary does not match the results.
func Read(text []byte) (*Report, error) {
	var d document
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	if d.APIVersion != apiVersion || d.Kind != kind {
		return nil, fmt.Errorf("report: it is a %q of %q, not a %q of %q", d.Kind, d.APIVersion, kind, apiVersion)
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

// validate returns an error if a report is inconsistent.
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

// Normalized returns a deep copy of the report with [Clean] applied to every text, and sorted results. It fails if a
// case has two results, or a result an unknown profile or verdict. Every writer calls it first.
func (r *Report) Normalized() (*Report, error) {
	r = r.cleaned()
	if err := r.validate(); err != nil {
		return nil, err
	}
	r.Sort()
	return r, nil
}

// Sort sorts the results by profile, feature and name.
func (r *Report) Sort() {
	slices.SortStableFunc(r.Results, func(a, b Result) int {
		return cmp.Or(slices.Index(Profiles(), a.Profile)-slices.Index(Profiles(), b.Profile),
			strings.Compare(a.Feature, b.Feature), strings.Compare(a.Case, b.Case))
	})
}

// FailedRules returns the texts of the rules that failed results test or mention as reasons.
func (r *Report) FailedRules() map[string]string {
	rules := map[string]string{}
	add := func(rule string) {
		if text := semantics.Text(rule); text != "" {
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
