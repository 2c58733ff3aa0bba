package report

import (
	"fmt"
	"time"
)

// Report is the result of one run of the suite against one implementation in one mode.
type Report struct {
	// Implementation is what was tested.
	Implementation Implementation `json:"implementation"`
	// Beside is the program that Implementation was compared with, or nil.
	Beside *Implementation `json:"beside,omitempty"`
	// Kernel is the kernel release, for example "6.1.0-30-amd64".
	Kernel string `json:"kernel"`
	// Machine says how busy the machine was, nil in older reports.
	Machine *Machine `json:"machine,omitempty"`
	// Suite is the version of the suite.
	Suite string `json:"suite"`
	// Seed determines source ports and random states: the same seed produces the same ones again.
	Seed uint64 `json:"seed"`
	// Problem says why the run ended early or judged nothing: the program exited, or never served. It is "" if the run is
	// complete. Log is the end of the program's output before that.
	Problem string `json:"problem,omitempty"`
	Log     string `json:"log,omitempty"`
	// Results has one result per case, in any order; case names are unique.
	Results []Result `json:"results"`
	// Speed has speed figures, or nil.
	Speed *Speed `json:"speed,omitempty"`
}

// Machine says how busy a machine was during a run.
type Machine struct {
	// Processors is the number of processors.
	Processors int `json:"processors"`
	// LoadBefore and LoadAfter are the load average of one minute at the beginning and at the end.
	LoadBefore float64 `json:"loadBefore"`
	LoadAfter  float64 `json:"loadAfter"`
	// Others is the share of the processors' time that programs other than the judge and the tested ones used, and Steal
	// the share that the hypervisor gave to other machines. Waiting is the share of the run in which some thread waited
	// for a processor. All are in percent.
	Others  int `json:"othersPercent"`
	Steal   int `json:"stealPercent"`
	Waiting int `json:"waitingPercent,omitempty"`
}

// String describes the load in one line.
func (m Machine) String() string {
	text := fmt.Sprintf("%d processors, load average %.1f before and %.1f after, used by others %d %%, stolen %d %%",
		m.Processors, m.LoadBefore, m.LoadAfter, m.Others, m.Steal)
	if m.Waiting > 0 {
		text += fmt.Sprintf(", threads had to wait %d %% of the time", m.Waiting)
	}
	return text
}

// Implementation is the program that was tested.
type Implementation struct {
	// Name is for example "kube-proxy", Version its version, and Mode its configuration, for example "nftables".
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Mode    string `json:"mode,omitempty"`
	// URL is where the program comes from.
	URL string `json:"url,omitempty"`
	// Command is the command that repeats the run.
	Command string `json:"command,omitempty"`
}

// Profile says how a case counts.
type Profile string

const (
	// Core is what Kubernetes documents and every service proxy must do.
	Core Profile = "core"
	// Extended is a feature that a proxy may lack without failing.
	Extended Profile = "extended"
	// Note is a departure of this project from Kubernetes. It is never a failure.
	Note Profile = "note"
	// Comparison is a difference between two programs. Only reports of comparisons have it.
	Comparison Profile = "comparison"
)

// Profiles returns all profiles, in report order.
func Profiles() []Profile { return []Profile{Comparison, Core, Extended, Note} }

// Verdict is the result of a case.
type Verdict string

const (
	// Passed: the results were right.
	Passed Verdict = "passed"
	// Slow: the results were right, but later than expected of a proxy.
	Slow Verdict = "slow"
	// Failed: a result was wrong, see Failures.
	Failed Verdict = "failed"
	// Unsupported: the proxy lacks a feature that the case needs.
	Unsupported Verdict = "unsupported"
	// NotJudged: a result was wrong, but the machine was too busy at every attempt to blame the proxy. It counts neither
	// for nor against it.
	NotJudged Verdict = "not judged"
	// NotRun: the case was not selected, the command lacks something that it needs, or the run ended early.
	NotRun Verdict = "not run"
)

// Verdicts returns all verdicts, in report order.
func Verdicts() []Verdict { return []Verdict{Passed, Slow, Failed, Unsupported, NotJudged, NotRun} }

// Result is the result of a case.
type Result struct {
	// Case is the name of the case, a sentence.
	Case string `json:"case"`
	// Rules are the numbers of the rules that the case tests, for example "S27".
	Rules   []string `json:"rules,omitempty"`
	Profile Profile  `json:"profile"`
	// Feature is the feature that a case of the profile extended tests.
	Feature string  `json:"feature,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Why explains every verdict but Passed in one sentence.
	Why string `json:"why,omitempty"`
	// Failures are the first failures; More is the number of others.
	Failures []Failure `json:"failures,omitempty"`
	More     int       `json:"more,omitempty"`
	// Elapsed is the duration of the case, and Ruleset the proxy's rules when it failed. The YAML omits both, because they
	// differ between runs.
	Elapsed time.Duration `json:"-"`
	Ruleset string        `json:"-"`
	// Interrupted: the case was to be run, but is NotRun because something other than the proxy failed.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Failure is one wrong result of a case.
type Failure struct {
	// Step is the step of the case, "" if it has only one.
	Step string `json:"step,omitempty"`
	// Flow is the connection tried, nil if the failure is about something else. Then Seen says everything.
	Flow *Flow `json:"flow,omitempty"`
	// Seen is what happened.
	Seen string `json:"seen"`
	// Want lists the acceptable outcomes.
	Want []Outcome `json:"want,omitempty"`
	// Path is the packet's path, as far as it is known.
	Path []Hop `json:"path,omitempty"`
	// Objects are the cluster's objects, as YAML for kubectl apply.
	Objects string `json:"objects,omitempty"`
}

// Flow is the connection of a failure.
type Flow struct {
	// From and To describe the source and the destination, for example "local-1" and "the cluster IP of web".
	From string `json:"from"`
	To   string `json:"to,omitempty"`
	// Source is the client's address, Destination the address and port that it connects to.
	Source      string `json:"source"`
	Destination string `json:"destination"`
	// Protocol is TCP, UDP or SCTP.
	Protocol string `json:"protocol"`
}

// Outcome is an acceptable outcome.
type Outcome struct {
	// What is the outcome, for example "deliver to 10.244.1.5:8080".
	What string `json:"what"`
	// Reasons are the steps of the reasoning, in order.
	Reasons []Reason `json:"reasons,omitempty"`
}

// Reason is a step of the reasoning that leads to an outcome.
type Reason struct {
	// Text is a clause in English, without a full stop.
	Text string `json:"text"`
	// Rule is the number of the rule that the step follows, or "".
	Rule string `json:"rule,omitempty"`
}

// Hop is a step on a packet's path.
type Hop struct {
	// At is the packet's location, for example "client", and Text what happens to it there.
	At   string `json:"at"`
	Text string `json:"text"`
	// Wrong: this hop is wrong.
	Wrong bool `json:"wrong,omitempty"`
}

// Title names the implementation, and the one that it was compared with.
func (r *Report) Title() string {
	if r.Beside == nil {
		return r.Implementation.String()
	}
	return r.Implementation.String() + " beside " + r.Beside.String()
}

// String returns the name, the version and the mode.
func (i Implementation) String() string {
	text := oneLine(i.Name)
	if i.Version != "" {
		text += " " + oneLine(i.Version)
	}
	if i.Mode != "" {
		text += ", mode " + oneLine(i.Mode)
	}
	return text
}

// String returns for example "local-1 10.1.1.5 -> 10.96.0.10:53/UDP (the cluster IP of dns)".
func (f Flow) String() string {
	text := f.From + " " + f.Source + " -> " + f.Destination + "/" + f.Protocol
	if f.To != "" {
		text += " (" + f.To + ")"
	}
	return text
}

// String returns the text, followed by the rule in brackets.
func (r Reason) String() string {
	if r.Rule == "" {
		return r.Text
	}
	return r.Text + " (" + r.Rule + ")"
}
