// Package apiserver runs Kubernetes' own programs, unmodified, against testing/apiserver: kube-proxy, to see that
// packets arrive, and kubectl, which has to print what it prints against a real server. It has only tests.
package apiserver
