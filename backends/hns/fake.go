package hns

import "sigs.k8s.io/kube-proxy-lib/internal/hns/dataplane"

// Fake is an HNS in memory, for Options.Dataplane: tests of programs that use this backend then run on any system.
type Fake struct {
	// Fake is for the backend alone.
	*dataplane.Fake
}

// NewFake returns a Fake that has one network, of type "L2Bridge" or "Overlay".
func NewFake(network, networkType string) Fake {
	f := dataplane.NewFake()
	f.SetNetwork(dataplane.Network{Name: network, Type: networkType}, false)
	return Fake{f}
}

// Dump returns the endpoints and load balancers, a line for each.
func (f Fake) Dump() string { return f.Fake.Dump() }
