package nft

import "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"

// Fake is nftables in memory, for Options.Dataplane: tests of programs that use this backend then run anywhere, without
// root. It checks what it is given as the kernel does.
type Fake struct {
	// Fake is for the backend alone.
	*dataplane.Fake
}

// NewFake returns a Fake without tables.
func NewFake() Fake { return Fake{dataplane.NewFake()} }

// Dump returns the tables as "nft list ruleset" prints them.
func (f Fake) Dump() string { return f.Fake.Dump() }
