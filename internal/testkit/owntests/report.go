package owntests

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"sigs.k8s.io/yaml"
)

// Report says how a service proxy did in Kubernetes' own tests.
type Report struct {
	// Tested is the service proxy.
	Tested Tested `json:"tested"`
	// Kubernetes is the version of Kubernetes, for example "v1.37.2", and FeatureGates those of its programs.
	Kubernetes   string `json:"kubernetes"`
	FeatureGates string `json:"featureGates,omitempty"`
	// Kernel is the kernel release.
	Kernel string `json:"kernel"`
	// Nodes is the number of nodes.
	Nodes int `json:"nodes"`
	// Processors and load averages of one minute say how busy the machine was.
	Processors int     `json:"processors"`
	LoadBefore float64 `json:"loadBefore"`
	LoadAfter  float64 `json:"loadAfter"`
	// Started is when the first test began, and Minutes how long all took, those that ran again apart.
	Started time.Time `json:"started"`
	Minutes int       `json:"minutes"`
	// Suite selects the tests, and Selected is their number: Passed, Skipped and Failures together.
	Suite    Suite `json:"suite"`
	Selected int   `json:"selected"`
	Passed   int   `json:"passed"`
	// PassedTests names the tests that passed at first, sorted. Reports older than this field have none.
	PassedTests []string `json:"passedTests,omitempty"`
	// Skipped are the tests that found that this cluster cannot run them, and Failures those that failed at first, both
	// sorted by name.
	Skipped  []Skipped `json:"skipped,omitempty"`
	Failures []Failure `json:"failures,omitempty"`
}

// Tested is a service proxy.
type Tested struct {
	// Name is for example "kube-proxy", Version its version, and Mode for example "nftables".
	Name    string `json:"name"`
	Version string `json:"version"`
	Mode    string `json:"mode"`
	// Command is what ran on each node. In it {node} and others stand for what differs between them.
	Command string `json:"command"`
	// Beside is what ran on the machine outside meanwhile: "" if nothing did.
	Beside string `json:"beside,omitempty"`
}

// Suite is a selection of tests.
type Suite struct {
	// Focus and Skip are regular expressions for the names of tests.
	Focus string `json:"focus"`
	Skip  string `json:"skip"`
	// Parallel is how many tests run at a time.
	Parallel int `json:"parallel"`
}

// Skipped is a test that skipped itself.
type Skipped struct {
	// Test is its name, and Reason what it said.
	Test   string `json:"test"`
	Reason string `json:"reason"`
}

// Failure is a test that failed.
type Failure struct {
	// Test is its name, and Message the first line of what it said.
	Test    string `json:"test"`
	Message string `json:"message"`
	// Again is how it ended when it ran once more, alone: "passed", "failed" or "skipped". Anything else says why that
	// is not known.
	Again string `json:"again"`
}

// FailedAgain returns the tests that failed, and did not pass when they ran alone.
func (r *Report) FailedAgain() []string {
	var tests []string
	for _, f := range r.Failures {
		if f.Again != "passed" {
			tests = append(tests, f.Test)
		}
	}
	return tests
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

// Worse returns the tests of FailedAgain that are not among those of another proxy.
func (r *Report) Worse(than *Report) []string {
	known := than.FailedAgain()
	return slices.DeleteFunc(r.FailedAgain(), func(test string) bool { return slices.Contains(known, test) })
}

// Comparable reports whether two reports are about the same tests of the same Kubernetes version.
func (r *Report) Comparable(with *Report) bool {
	return r.Kubernetes == with.Kubernetes && r.FeatureGates == with.FeatureGates && r.Suite.Focus == with.Suite.Focus &&
		r.Suite.Skip == with.Suite.Skip && r.Selected == with.Selected
}

// WriteYAML writes a report.
func WriteYAML(w io.Writer, r *Report) error {
	text, err := yaml.Marshal(r)
	if err != nil {
		return fmt.Errorf("report of %s: %w", r.Tested.Name, err)
	}
	_, err = w.Write(text)
	return err
}

// Read reads the output of WriteYAML. It fails if the numbers do not match the tests.
func Read(text []byte) (*Report, error) {
	r := &Report{}
	if err := yaml.UnmarshalStrict(text, r); err != nil {
		return nil, fmt.Errorf("report of Kubernetes' own tests: %w", err)
	}
	if all := r.Passed + len(r.Skipped) + len(r.Failures); all != r.Selected {
		return nil, fmt.Errorf("report of %s: of %d tests it has %d", r.Tested.Name, r.Selected, all)
	}
	if n := len(r.PassedTests); n > 0 && n != r.Passed {
		return nil, fmt.Errorf("report of %s: of %d tests that passed it names %d", r.Tested.Name, r.Passed, n)
	}
	return r, nil
}

// Is reports whether a text is such a report, rather than one of package report. It need not be one that can be read.
func Is(text []byte) bool {
	var r struct {
		Tested json.RawMessage `json:"tested"`
	}
	return yaml.Unmarshal(text, &r) == nil && r.Tested != nil
}
