// Package cluster runs the control plane of a real Kubernetes cluster on loopback, for tests: etcd, kube-apiserver and,
// on request, kube-controller-manager with the controllers for services. There is no kubelet: pods
// are objects, and their status is what a test writes.
//
// The programs come from the folder that ./build fills, that of the first version in kubernetes-versions or, with the
// environment variable KPL_KUBERNETES=v1.36.4, of another one. Where they are missing, tests skip and say so.
package cluster
