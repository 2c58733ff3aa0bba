package iptables

import (
	"sigs.k8s.io/kube-proxy-lib/internal/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Dataplane is an iptables of one family: see [Options] and [NewFake].
type Dataplane = dataplane.Interface

// NewFake returns an iptables in memory, for Options.Dataplanes: tests of programs that use this backend then run
// anywhere, without root. It keeps the text of chains, which Dump prints as iptables-save does, and does not check it
// beyond references to chains.
func NewFake(f model.Family) *dataplane.Fake { return dataplane.NewFake(f) }
