// Package dataplane is the part of the kernel that the IPVS backend needs besides nftables, behind one narrow
// interface: [Interface]. [Kernel] is the real one (Linux); [Fake] is a model of it that runs anywhere, checks its
// calls, and counts them.
//
// # Working around github.com/moby/ipvs
//
// [Kernel] sends everything through moby/ipvs and vishvananda/netlink. It deals with their surprises:
//
//   - A handle of moby/ipvs is not safe for concurrent use: replies to one request would be taken for those to another.
//     Kernel lets one call through at a time.
//   - Its receive loop never ends while the kernel does not answer. When the context of a call ends, its socket
//     is closed, which ends the loop; the next call opens another one.
//   - It looks up IPVS once in the lifetime of a process. If the module is missing then, it writes a line to its own
//     logger and continues without IPVS. [NewKernel] asks the kernel itself before, and fails with an error that names
//     the module.
//   - It reads two of the four bytes of a weight: on a big-endian processor each is 0. NewKernel fails there.
//   - IsServicePresent treats every error as "no". It is not used.
//   - Real servers can only be listed one virtual server at a time. So the backend lists them when it starts, when it
//     resyncs, and those of virtual servers with draining connections; never for a change.
//   - A request carries one change, and waits for its reply. There is no batch: a change of one endpoint is one or two
//     requests per virtual server, each of a few microseconds.
package dataplane
