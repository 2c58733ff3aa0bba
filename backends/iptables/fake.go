package iptables

import (
	"sigs.k8s.io/kube-proxy-lib/internal/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Dataplane is an iptables of one family: see [Options] and [NewFake].
type Dataplane = dataplane.Interface

// NewFake returns an iptables in memory, for Options.Dataplanes: tests of programs that use this backend then run
// anywhere, without root. It checks what it is given as the programs and the kernel do. Dump prints its rules as
// iptables-save does.
func NewFake(f model.Family) *dataplane.Fake { return dataplane.NewFake(f) }
