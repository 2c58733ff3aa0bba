// Package cluster runs a real Kubernetes control plane on loopback for tests: etcd, kube-apiserver and, on request,
// kube-controller-manager with the service controllers. There is no kubelet: pods are only objects, and the test writes
// their status.
//
// The programs come from the folder that ./build fills: the first version in kubernetes-versions or, with
// KPL_KUBERNETES=v1.36.4 in the environment, another one. Tests skip if they are missing, and say so.
package cluster
