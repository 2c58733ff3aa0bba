package report

import (
	"time"
)

// Report is the result of one run of the suite against one implementation in one mode.
type Report struct {
	// Implementation is what was tested.
	Implementation Implementation `json:"implementation"`
	// Beside is the program that it was compared with, nil if it was tested alone.
	Beside *Implementation `json:"beside,omitempty"`
	// Kernel is the release of the kernel, for example "6.1.0-30-amd64". Nothing else is said of the machine.
	Kernel string `json:"kernel"`
	// Suite is the version of the suite.
	Suite string `json:"suite"`
	// Seed determines source ports and random states: the same seed produces the same ones again.
	Seed uint64 `json:"seed"`
	// Problem says why the run ended early, or why there is nothing to judge: the program exited, or never served
	// anything. "" if the run is complete. Log is the end of what the program printed before that.
	Problem string `json:"problem,omitempty"`
	Log     string `json:"log,omitempty"`
	// Results has one result for each case, in any order; names of cases are unique.
	Results []Result `json:"results"`
	// Speed has figures of speed, nil if none were taken.
	Speed *Speed `json:"speed,omitempty"`
}

// Implementation is the program that was tested.
type Implementation struct {
	// Name is for example "kube-proxy", Version its version, and Mode how it was configured, for example "nftables".
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Mode    string `json:"mode,omitempty"`
	// URL is where the program comes from.
	URL string `json:"url,omitempty"`
	// Command repeats the run.
	Command string `json:"command,omitempty"`
}

// Profile is how much a case counts.
type Profile string

const (
	// Core is what Kubernetes documents and every service proxy must do.
	Core Profile = "core"
	// Extended is a feature that a proxy may lack: that is not a failure.
	Extended Profile = "extended"
	// Note is where this project departs from Kubernetes: worth knowing, and never a failure.
	Note Profile = "note"
	// Comparison is a difference between two programs side by side. Reports of one program have none.
	Comparison Profile = "comparison"
)

// Profiles returns all profiles, in the order of reports.
func Profiles() []Profile { return []Profile{Comparison, Core, Extended, Note} }

// Verdict is what became of a case.
type Verdict string

const (
	// Passed is right.
	Passed Verdict = "passed"
	// Slow is right, but later than the suite expects of a proxy.
	Slow Verdict = "slow"
	// Failed is wrong, see Failures.
	Failed Verdict = "failed"
	// Unsupported needs a feature that the proxy lacks.
	Unsupported Verdict = "unsupported"
	// NotRun was not tried: it was not selected, the command lacks something that it needs, or the run ended early.
	NotRun Verdict = "not run"
)

// Verdicts returns all verdicts, in the order of reports.
func Verdicts() []Verdict { return []Verdict{Passed, Slow, Failed, Unsupported, NotRun} }

// Result is what became of one case.
type Result struct {
	// Case is the name of the case. It reads as a sentence.
	Case string `json:"case"`
	// Rules are the numbers of the rules that the case is about, for example "S27". See [RuleText].
	Rules   []string `json:"rules,omitempty"`
	Profile Profile  `json:"profile"`
	// Feature is what a case of the profile extended is about.
	Feature string  `json:"feature,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Why explains every verdict but Passed in one sentence.
	Why string `json:"why,omitempty"`
	// Failures are the first failures of the case; More is how many others there were.
	Failures []Failure `json:"failures,omitempty"`
	More     int       `json:"more,omitempty"`
	// Elapsed is the time that the case took, and Ruleset what the proxy had programmed when it failed. Both differ
	// between runs: they are not in the YAML.
	Elapsed time.Duration `json:"-"`
	Ruleset string        `json:"-"`
}

// Failure is one thing that went wrong.
type Failure struct {
	// Step is the step of the case, in the words of the case; "" if it has only one.
	Step string `json:"step,omitempty"`
	// Flow is the connection that was tried, nil if the failure is about something else. Then Seen says everything.
	Flow *Flow `json:"flow,omitempty"`
	// Seen is what happened.
	Seen string `json:"seen"`
	// Want is what should have happened. If there are several, each would have been right.
	Want []Outcome `json:"want,omitempty"`
	// Path is the way that the packet took, as far as it can be told.
	Path []Hop `json:"path,omitempty"`
	// Objects are the objects of the cluster, as YAML. See [Objects].
	Objects string `json:"objects,omitempty"`
}

// Flow is a connection that was tried.
type Flow struct {
	// From and To say in words where the connection comes from and what it is for, for example "local-1" and "the
	// cluster IP of web".
	From string `json:"from"`
	To   string `json:"to,omitempty"`
	// Source is the client's address, Destination the address and port that it connects to.
	Source      string `json:"source"`
	Destination string `json:"destination"`
	// Protocol is TCP, UDP or SCTP.
	Protocol string `json:"protocol"`
}

// Outcome is something that would have been right.
type Outcome struct {
	// What should have happened, for example "deliver to 10.244.1.5:8080".
	What string `json:"what"`
	// Reasons lead to it, each from the one before.
	Reasons []Reason `json:"reasons,omitempty"`
}

// Reason is one step towards an outcome.
type Reason struct {
	// Text is a clause in English, without a full stop.
	Text string `json:"text"`
	// Rule is the number of the rule that the step follows, "" if it follows none.
	Rule string `json:"rule,omitempty"`
}

// Hop is a station of a packet.
type Hop struct {
	// At is where the packet is, for example "client", and Text what happens to it there.
	At   string `json:"at"`
	Text string `json:"text"`
	// Wrong: this is where it went wrong.
	Wrong bool `json:"wrong,omitempty"`
}

// Title names what was tested: the implementation, and the one beside it.
func (r *Report) Title() string {
	if r.Beside == nil {
		return r.Implementation.String()
	}
	return r.Implementation.String() + " beside " + r.Beside.String()
}

// String returns for example "local-1 10.1.1.5 -> 10.96.0.10:53/UDP (the cluster IP of dns)".
func (f Flow) String() string {
	text := f.From + " " + f.Source + " -> " + f.Destination + "/" + f.Protocol
	if f.To != "" {
		text += " (" + f.To + ")"
	}
	return text
}

// String returns the text and, in brackets, the rule.
func (r Reason) String() string {
	if r.Rule == "" {
		return r.Text
	}
	return r.Text + " (" + r.Rule + ")"
}
