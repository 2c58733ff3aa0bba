package hostaddr

import "sigs.k8s.io/kube-proxy-lib/node/nodeaddr"

// Local is the [nodeaddr.Host] of the addresses at which programs of this machine can listen. On Linux these are the
// addresses in the kernel's table of local routes: those of all interfaces, as soon as they are usable, and those of
// local routes to a single address, which some programs set instead, for example the guest agent of Google Compute
// Engine for the VIPs of load balancers. On other systems Local is the same as System. The zero value is ready to use.
//
// Interfaces are not named: HostAddress.Interface is empty on Linux.
type Local struct {
	// NetNS is a file descriptor of a network namespace (Linux), which has to stay open. 0 means the calling thread's.
	NetNS int
}

var _ nodeaddr.Host = (*Local)(nil)
