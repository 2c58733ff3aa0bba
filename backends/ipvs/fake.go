package ipvs

import "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"

// Fake is IPVS in memory, for Options.Dataplane: tests of programs that use this backend then run anywhere, without
// root, with nft.NewFake for Options.NFTables. It checks what it is given as the kernel does.
type Fake struct {
	// Fake is for the backend alone.
	*dataplane.Fake
}

// NewFake returns a Fake without virtual servers.
func NewFake() Fake { return Fake{dataplane.NewFake()} }

// Dump returns the service addresses, and the virtual servers as ipvsadm prints them.
func (f Fake) Dump() string { return f.Fake.Dump() }
