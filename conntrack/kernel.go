package conntrack

import "sync/atomic"

// Kernel is the [Table] of the Linux kernel, in one network namespace. The zero value is the table of the calling
// thread's namespace, usually the process's. It needs CAP_NET_ADMIN there. It may be used from several goroutines;
// every call opens its own sockets.
//
// The kernel sends only the UDP flows that are selected, if it can filter (5.8 or later); in IPv6 it selects by ports,
// not by addresses. The dump is read in pieces of 64 KiB, and deletes are sent meanwhile, 128 at a time.
type Kernel struct {
	// NetNS is a file descriptor of the network namespace, which has to stay open. 0: the calling thread's.
	NetNS int

	cannotFilter atomic.Bool // the kernel has refused or ignored a filter
}

var _ Table = (*Kernel)(nil)
