// Package apiserver runs Kubernetes' own kube-proxy, unmodified, against testing/apiserver, the API server in the
// process, until packets flow. It has tests only.
package apiserver
