// Package dropin tests examples/kube-proxy, the program, against a real API server and with real packets: it is built,
// started in a network namespace that is a node, given a kubeconfig, and killed when that is what is tested. Clients
// and pods are in namespaces of their own.
//
// # Where things are
//
//   - lab_linux_test.go: the network
//   - program_linux_test.go: the program
//   - traffic_linux_test.go: single questions, and clients that never stop
//   - objects_linux_test.go: services and slices
//   - one file for each thing that is tested
//
// Most tests run once for each proxy mode in the list modes.
package dropin
