package hns

import "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"

// Dataplane is the HNS that the backend writes to: this machine's, or what [NewFake] returns. Its methods are for the
// backend alone.
type Dataplane = dataplane.Interface

// Fake is an HNS in memory, for Options.Dataplane: tests of programs that use this backend then run on any system.
type Fake struct{ *fake }

type fake = dataplane.Fake

// NewFake returns a Fake that has one network, of type "L2Bridge" or "Overlay".
func NewFake(network, networkType string) Fake {
	f := dataplane.NewFake()
	f.SetNetwork(dataplane.Network{Name: network, Type: networkType}, false)
	return Fake{f}
}

// Dump returns the endpoints and load balancers, a line for each.
func (f Fake) Dump() string { return f.fake.Dump() }

// Fail makes every write fail with err and change nothing, until Fail(nil). Reads do not fail. It may be called while
// the backend is at work. A program that calls Sync itself calls ResyncFailed before it tries again, as a run does.
func (f Fake) Fail(err error) { f.fake.Fail(err) }
