// Package judge runs testing/judge on upstream's kube-proxy: that passes what every proxy has to pass.
package judge
