// Package judge runs testing/judge on upstream's kube-proxy: that passes what every proxy has to pass. It also runs it
// against a real API server, which leads to the same verdicts as the one in the process.
package judge
