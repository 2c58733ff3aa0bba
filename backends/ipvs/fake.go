package ipvs

import (
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
)

// Dataplane is the IPVS that the backend writes to, with a dummy interface: the kernel's, or what [NewFake] returns.
// Its methods are for the backend alone.
type Dataplane = dataplane.Interface

// NFTables is the nftables of the backend's packet filter: the kernel's, or what nft.NewFake returns. Its methods are
// for the backend alone.
type NFTables = nft.Interface

// Fake is IPVS in memory, for Options.Dataplane: tests of programs that use this backend then run anywhere, without
// root, with nft.NewFake for Options.NFTables. It checks what it is given as the kernel does.
type Fake struct{ *fake }

type fake = dataplane.Fake

// NewFake returns a Fake without virtual servers.
func NewFake() Fake { return Fake{dataplane.NewFake()} }

// Dump returns the service addresses, and the virtual servers as ipvsadm prints them.
func (f Fake) Dump() string { return f.fake.Dump() }

// Fail makes every write fail with err and change nothing, until Fail(nil). Reads do not fail. It may be called while
// the backend is at work. A program that calls Sync itself calls ResyncFailed before it tries again, as a run does.
func (f Fake) Fail(err error) { f.fake.Fail(err) }
