// Package dropin is a whole kube-proxy to import, for programs that have one inside, such as single binaries with all
// components of a node. examples/kube-proxy is this package with a main.
//
//	err := dropin.Run(ctx, dropin.Config{Configuration: c, Client: client})
//
// Configuration is kube-proxy's, package config/v1alpha2; package config reads its files, of any version. Package
// dropin/command has kube-proxy's flags, and what it does besides proxying, for programs that pass arguments on.
//
// # What it guarantees
//
//   - [Run] returns when its context ends or something fails permanently, with an error that names the cause, and
//     without goroutines. The rules stay.
//   - Each call of Run is independent of others in the process: it has its own metrics registry, feature gates, servers
//     and clients, and logs to the logger in its context. Two on one machine need two nodes, with addresses of their
//     own for health and metrics, and write to one kernel: see below.
//   - Nothing of this machine is changed before the configuration and the node are known to be valid.
//
// # What it never does
//
// It does not exit, read flags or arguments, install signal handlers, or change what belongs to the process: klog and
// its verbosity, global feature gates, prometheus's default registry, oom_score_adj. Only with [Config.OwnProcess] does
// it set oom_score_adj, and the verbosity when a client of its metrics server asks for that.
//
// # What belongs to the machine
//
// Rules, kernel parameters and HNS objects have no owner but the network namespace: like two kube-proxies, two calls of
// Run in one namespace would overwrite each other's rules. Run works in the namespace of the thread that its calls are
// made from, which Go chooses: the program has to be in that of the node as a whole. It reads /proc and /sys; on
// Windows also the environment variables KUBE_NETWORK and ProgramData; and, without Client and kubeconfig, those of a
// pod.
//
// # What it links
//
// All backends, client-go and the client of package remote, with gRPC. A program that wants one backend, its own wiring
// or its own dataplane calls kubeproxy.Run instead; its run.go is then an example to read: it wires a feed, health
// checks, conntrack and a backend. Nothing else in the library imports this package. It imports net/http/pprof, which
// adds its handlers to http.DefaultServeMux: a program that serves that mux serves profiles with it.
package dropin
