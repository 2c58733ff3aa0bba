// Package library tests kubeproxy.Run and its sources against a real API server: who filters, what is sent over the
// wire, and what a sink is told after an outage of the API server.
package library
