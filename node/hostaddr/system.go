package hostaddr

import "sigs.k8s.io/kube-proxy-lib/node/nodeaddr"

// System is the [nodeaddr.Host] that this process runs on. The zero value is ready to use.
//
// On Linux it uses the network namespace NetNS or, by default, the calling thread's, usually the process's. On other
// systems Watch only waits for the end of its context.
type System struct {
	// NetNS is a file descriptor of a network namespace (Linux), which has to stay open. 0 means the calling thread's.
	NetNS int
	// ExcludeInterfaces are names of interfaces whose addresses are ignored, such as one to which a backend adds the
	// services' addresses. On Linux, Watch does not report changes of these addresses.
	ExcludeInterfaces []string
}

var _ nodeaddr.Host = (*System)(nil)
