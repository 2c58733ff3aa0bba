package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Tested is the service proxy that a report is about.
type Tested struct {
	// Name is for example "kube-proxy", Version its version, and Mode for example "nftables".
	Name    string `json:"name"`
	Version string `json:"version"`
	Mode    string `json:"mode"`
	// Command is what ran on each node, as for [Cluster.Proxy].
	Command string `json:"command"`
	// Beside is what ran on the machine outside meanwhile, as for [Cluster.Beside]: "" if nothing did.
	Beside string `json:"beside,omitempty"`
}

// Report says how a service proxy did in Kubernetes' own tests.
type Report struct {
	Tested     Tested `json:"tested"`
	Kubernetes string `json:"kubernetes"`
	// FeatureGates are those of Kubernetes' programs.
	FeatureGates string `json:"featureGates,omitempty"`
	Kernel       string `json:"kernel"`
	Nodes        int    `json:"nodes"`
	// Processors and load averages of one minute say how busy the machine was.
	Processors int       `json:"processors"`
	LoadBefore float64   `json:"loadBefore"`
	LoadAfter  float64   `json:"loadAfter"`
	Started    time.Time `json:"started"`
	Minutes    int       `json:"minutes"`
	Suite      Suite     `json:"suite"`
	// Selected is the number of tests that Suite selects: Passed, Skipped and Failures together.
	Selected int `json:"selected"`
	Passed   int `json:"passed"`
	// Skipped are the tests that found that this cluster cannot run them, and Failures those that failed at first.
	Skipped  []Skipped `json:"skipped,omitempty"`
	Failures []Failure `json:"failures,omitempty"`
}

// Skipped is a test that skipped itself.
type Skipped struct {
	Test   string `json:"test"`
	Reason string `json:"reason"`
}

// Failure is a test that failed.
type Failure struct {
	Test    string `json:"test"`
	Message string `json:"message"`
	// Again is how it ended when it ran once more, alone: "passed", "failed" or "skipped". Anything else says why that
	// is not known.
	Again string `json:"again"`
}

// add counts results.
func (r *Report) add(results []result) {
	for _, t := range results {
		switch t.outcome {
		case "passed":
			r.Passed++
		case "skipped":
			r.Skipped = append(r.Skipped, Skipped{Test: t.test, Reason: firstLine(t.message)})
		case "failed":
			r.Failures = append(r.Failures, Failure{Test: t.test, Message: firstLine(t.message)})
		default:
			continue
		}
		r.Selected++
	}
	slices.SortFunc(r.Skipped, func(a, b Skipped) int { return strings.Compare(a.Test, b.Test) })
	slices.SortFunc(r.Failures, func(a, b Failure) int { return strings.Compare(a.Test, b.Test) })
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// Again returns the tests that failed, and did not pass when they ran alone.
func (r *Report) Again() []string {
	var out []string
	for _, f := range r.Failures {
		if f.Again != "passed" {
			out = append(out, f.Test)
		}
	}
	return out
}

// Summary says in one line how many tests passed.
func (r *Report) Summary() string {
	alone, unknown := 0, 0
	for _, f := range r.Failures {
		switch f.Again {
		case "failed":
			alone++
		case "passed", "skipped":
		default:
			unknown++
		}
	}
	s := fmt.Sprintf("%s %s, %s, Kubernetes %s, %d nodes: of %d tests %d passed, %d skipped, %d failed, %d of these "+
		"also alone", r.Tested.Name, r.Tested.Version, r.Tested.Mode, r.Kubernetes, r.Nodes, r.Selected, r.Passed,
		len(r.Skipped), len(r.Failures), alone)
	if unknown > 0 {
		s += fmt.Sprintf(", %d not known", unknown)
	}
	return s
}

// Worse returns the tests of Again that are not among those of another proxy.
func (r *Report) Worse(than *Report) []string {
	known := than.Again()
	return slices.DeleteFunc(r.Again(), func(test string) bool { return slices.Contains(known, test) })
}

// Comparable reports whether two reports are about the same tests of the same Kubernetes version.
func (r *Report) Comparable(with *Report) bool {
	return r.Kubernetes == with.Kubernetes && r.FeatureGates == with.FeatureGates && r.Suite.Focus == with.Suite.Focus &&
		r.Suite.Skip == with.Suite.Skip && r.Selected == with.Selected
}

// ReadReport reads a report from a file.
func ReadReport(path string) (*Report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &Report{}
	if err := yaml.UnmarshalStrict(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Write writes the report to a file.
func (r *Report) Write(path string) error {
	b, err := yaml.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}
