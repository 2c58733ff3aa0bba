package ipvs

import "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"

// NewFake returns IPVS in memory, for Options.Dataplane: tests of programs that use this backend then run anywhere,
// without root, with nft.NewFake for Options.NFTables. It checks what it is given as the kernel does. Dump prints the
// service addresses and the virtual servers as ipvsadm does.
func NewFake() *dataplane.Fake { return dataplane.NewFake() }
