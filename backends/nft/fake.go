package nft

import "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"

// NewFake returns nftables in memory, for Options.Dataplane: tests of programs that use this backend then run anywhere,
// without root. It checks what it is given as the kernel does. Dump prints its tables as nft does.
func NewFake() *dataplane.Fake { return dataplane.NewFake() }
