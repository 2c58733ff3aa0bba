package hns

import "sigs.k8s.io/kube-proxy-lib/internal/hns/dataplane"

// NewFake returns an HNS in memory that has one network, for Options.Dataplane: tests of programs that use this backend
// then run on any system. The type of a network is "L2Bridge" or "Overlay". Dump prints endpoints and load balancers.
func NewFake(network, networkType string) *dataplane.Fake {
	f := dataplane.NewFake()
	f.SetNetwork(dataplane.Network{Name: network, Type: networkType}, false)
	return f
}
