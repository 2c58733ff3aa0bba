package judge

import (
	"fmt"
	"regexp"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// Options are the options of [Run]. The zero value runs all cases.
type Options struct {
	// Run selects cases by name, nil all of them. CoreOnly leaves out cases outside the core profile.
	Run      *regexp.Regexp
	CoreOnly bool
	// Lanes is the number of networks, each with its own program, that share the cases. Default 4. Unless it is 1, each
	// case in which the API server goes away gets an additional one, because it mostly waits.
	Lanes int
	// Seed determines the source ports of clients.
	Seed uint64
	// StartTimeout limits the time until a started program serves. Default 60 s.
	StartTimeout time.Duration
	// Sizes are cluster sizes at which the program's speed is measured after the cases. At each size, changes are made at
	// each of Rates, in changes per second. Default rate: 10.
	Sizes []program.Size
	Rates []int
	// EvenIfBusy judges wrong results even while other programs keep the machine too busy for a right program.
	EvenIfBusy bool
	// Progress is called with each result, one at a time, and with the total number of cases.
	Progress func(r report.Result, of int)
	// Say is called with other progress messages.
	Say func(text string)
}

// CompareOptions are the options of [Compare].
type CompareOptions struct {
	// Names are the programs' names in the report. They must differ.
	Names [2]string
	// Clusters is the number of random clusters to try, default 60. Time is the time after which no cluster is started and
	// no finding reduced, default 5 minutes.
	Clusters int
	Time     time.Duration
	// Seed determines the clusters and the flows, given the same Lacks. 0 selects a random seed.
	Seed uint64
	// StartTimeout, EvenIfBusy and Say are those of [Options].
	StartTimeout time.Duration
	EvenIfBusy   bool
	Say          func(text string)
}

// mostChanges is the highest rate, in changes per second.
const mostChanges = 1000

// ValidRate returns an error for an invalid number of changes per second.
func ValidRate(perSecond int) error {
	if perSecond < 1 || perSecond > mostChanges {
		return fmt.Errorf("%d changes a second: at least 1, at most %d", perSecond, mostChanges)
	}
	return nil
}
