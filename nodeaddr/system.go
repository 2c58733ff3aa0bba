package nodeaddr

// System is the [Host] that this process runs on. The zero value is ready to use.
//
// On Linux the addresses are those of the network namespace NetNS or, by default, of the calling thread's, usually the
// process's. On other systems Watch only waits for its context to end.
type System struct {
	// NetNS is a file descriptor of a network namespace (Linux), which has to stay open. 0: the calling thread's.
	NetNS int
	// ExcludeInterfaces are names of interfaces whose addresses are ignored, for example one to which a backend adds
	// the services' own addresses. On Linux, Watch does not report their changes.
	ExcludeInterfaces []string
}

var _ Host = (*System)(nil)
