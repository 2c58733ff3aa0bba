// Command judge runs the conformance suite against any service proxy that is a program: it makes a small cluster of
// network namespaces with an API server, starts the program on a node of that, sends the packets, and writes a report.
//
//	go run ./testing/judge --report out/ --proxy 'kube-proxy --kubeconfig {kubeconfig} --hostname-override {node} \
//		--proxy-mode nftables --conntrack-max-per-core 0 {flags}'
//
// With --api-server and a kubeconfig, the objects are in a real API server instead. With --beside and the command of
// another program, it compares both in random clusters.
//
// It needs Linux, and root or a user namespace (unshare -rn). docs/conformance/README.md says how to read the report, and
// how to test a proxy that has other flags than kube-proxy.
package main
