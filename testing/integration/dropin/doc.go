// Package dropin tests examples/kube-proxy, the program, against a real API server and with real packets: they build
// it, start it with a kubeconfig in a network namespace that serves as the node, and kill it where that is what is
// tested. Clients and pods have namespaces of their own.
//
// # Where things are
//
//   - lab_linux_test.go: the network
//   - program_linux_test.go: the program
//   - traffic_linux_test.go: single questions, and clients that never stop
//   - objects_linux_test.go: services and slices
//   - one file for each topic
//
// Most tests run once for each proxy mode in the list modes.
package dropin
