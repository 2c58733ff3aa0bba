// Package dropin tests cmd/kube-proxy against a real API server and with real packets: it builds the program, starts it
// with a kubeconfig in a network namespace that serves as the node, and in some tests kills it. Clients and pods have
// their own namespaces.
//
// # Where things are
//
//   - lab_linux_test.go: the network
//   - program_linux_test.go: the program
//   - traffic_linux_test.go: single requests, and clients that send continuously
//   - objects_linux_test.go: services and slices
//   - one file for each topic
//
// Most tests run once for each proxy mode.
package dropin
