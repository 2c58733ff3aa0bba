// Package dropin is a complete kube-proxy to import, for programs that embed one, such as single binaries with all
// components of a node. cmd/kube-proxy is this package with a main function.
//
//	err := dropin.Run(ctx, dropin.Config{Configuration: c, Client: client})
//
// Configuration is kube-proxy's, package dropin/config/v1alpha2; package dropin/config reads its files, of any version.
// Package dropin/command has kube-proxy's flags and other functions, for programs that pass arguments on.
//
// # What it guarantees
//
//   - [Run] returns when its context ends or something fails permanently, with an error that names the cause. No
//     goroutine remains, but the rules do.
//   - Calls of Run are independent of others in the process: each has its own metrics registry, feature gates, servers
//     and clients, and logs to its context's logger. Two calls on one machine need two nodes, with separate addresses
//     for health and metrics; see below for the kernel.
//   - Nothing on the machine is changed before the configuration and the node are known to be valid.
//
// # What it never does
//
// It does not exit, read flags or arguments, install signal handlers, or change process-wide settings: klog and its
// verbosity, global feature gates, prometheus's default registry, oom_score_adj, GOGC. Only with [Config.OwnProcess]
// does it set oom_score_adj and GOGC, and, when a client of its metrics server requests it, the verbosity.
//
// # What belongs to the machine
//
// Rules, kernel parameters and HNS objects belong to the network namespace: like two kube-proxies, two calls of Run in
// one namespace would overwrite each other's rules. Run works in the namespace of the calling thread, which Go chooses:
// the whole program has to be in the node's. It reads /proc and /sys; on Windows also the environment variables
// KUBE_NETWORK and ProgramData; and, without Client and kubeconfig, those of a pod.
//
// # What it links
//
// It links all backends, client-go, and the client of package remote with gRPC. A program that needs one backend, its
// own wiring or its own dataplane calls kubeproxy.Run instead; dropin/run.go is then an example: it wires a feed,
// health checks, conntrack and a backend. Nothing else in the library imports this package. It imports net/http/pprof,
// which adds its handlers to http.DefaultServeMux: a program that serves that mux serves profiles too.
package dropin
