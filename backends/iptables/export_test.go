package iptables

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/iptables/dataplane"
)

// Of returns the options for the programs of a variant.
func (o Options) Of(v dataplane.Variant) Options {
	o.variant = v
	return o
}

// Looking returns the options with another interval between the checks for drift; negative: none.
func (o Options) Looking(every time.Duration) Options {
	o.driftInterval = every
	return o
}

// Looks reports whether the options have an interval.
func (o Options) Looks() bool { return o.driftInterval != 0 }
