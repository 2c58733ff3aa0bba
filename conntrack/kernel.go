package conntrack

import "sync/atomic"

// Kernel is the [Table] of the Linux kernel in one network namespace. The zero value uses the calling thread's
// namespace, usually the process's. It needs CAP_NET_ADMIN there. It may be used concurrently; every call opens its own
// sockets.
//
// If the kernel supports filters (5.8 or later), it sends only the selected UDP flows; for IPv6 it selects by ports,
// not by addresses. The dump is read in blocks of 64 KiB, while deletes are sent in batches of 128.
type Kernel struct {
	// NetNS is a file descriptor of the network namespace, which has to stay open. 0 means the calling thread's.
	NetNS int

	cannotFilter atomic.Bool // the kernel has rejected or ignored a filter
}

var _ Table = (*Kernel)(nil)
