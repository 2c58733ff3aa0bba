package iptables

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
)

// Of returns the options for the programs of a variant.
func (o Options) Of(v dataplane.Variant) Options {
	o.variant = v
	return o
}

// CheckingEvery returns the options with another interval between the checks for drift; negative: none.
func (o Options) CheckingEvery(every time.Duration) Options {
	o.driftInterval = every
	return o
}

// Splitting returns the options with another number of names that a transaction of iptables-nft may have.
func (o Options) Splitting(maxNames int) Options {
	o.maxNames = maxNames
	return o
}

// CounterNames returns the names of the kernel's counters.
func CounterNames() []string { return counterNames() }

// HasDriftInterval reports whether the options have an interval, which may be negative: see CheckingEvery.
func (o Options) HasDriftInterval() bool { return o.driftInterval != 0 }
