// Command judge runs the conformance suite against any service proxy that is a program: it creates a small cluster of
// network namespaces with an API server, starts the program on one of its nodes, sends packets, and writes a report.
//
//	go run ./cmd/judge --report out/ --proxy 'kube-proxy --kubeconfig {kubeconfig} --hostname-override {node} \
//		--proxy-mode nftables --conntrack-max-per-core 0 {flags}'
//
// With --api-server and a kubeconfig, the objects are in a real API server instead. With --beside and the command of
// another program, it compares the two programs in random clusters.
//
// It needs Linux, and root or a user namespace (unshare -rn). docs/conformance.md explains the report, and how to test
// a proxy whose flags differ from kube-proxy's.
package main
