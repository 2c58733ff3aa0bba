// Package library tests kubeproxy.Run and its sources against a real API server: who filters, what comes over the wire,
// and what a sink is told when the API server has been away.
package library
