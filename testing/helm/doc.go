// Package helm has only tests, of the Helm chart in cmd/kube-proxy/deploy, with the code of Helm and of kustomize. It
// is a module of its own, so that the library's go.mod requires neither.
package helm
