package iptables

import (
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Dataplane is the iptables of one family that the backend writes to: the programs, or what [NewFake] returns. Its
// methods are for the backend alone.
type Dataplane = dataplane.Interface

// Fake is an iptables in memory, for Options.Dataplanes: tests of programs that use this backend then run anywhere,
// without root. It keeps the text of chains, and does not check it beyond references to chains.
type Fake struct{ *fake }

type fake = dataplane.Fake

// NewFake returns a Fake of a family, without chains of its own.
func NewFake(f model.Family) Fake { return Fake{dataplane.NewFake(f)} }

// Dump returns the chains as iptables-save prints them.
func (f Fake) Dump() string { return f.fake.Dump() }

// Fail makes every write fail with err and change nothing, until Fail(nil). Reads do not fail. It may be called while
// the backend is at work. A program that calls Sync itself calls ResyncFailed before it tries again, as a run does.
func (f Fake) Fail(err error) { f.fake.Fail(err) }
