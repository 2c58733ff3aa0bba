// Package library tests kubeproxy.Run and its sources against a real API server: which side filters, what is sent over
// the network, and the calls to a sink after an outage of the API server.
package library
