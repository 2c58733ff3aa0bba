// Package e2e runs a Kubernetes cluster on one Linux machine, as root and without Docker, with any service proxy on its
// nodes, and Kubernetes' own tests against it.
//
// The script build makes all programs, from Go modules and Debian's packages. The script run makes a cluster, runs the
// tests against a proxy, and ends the cluster. The command in the folder cluster does each of these by itself. From
// testing/integration:
//
//	e2e/build
//	e2e/run
//
//	go build -o /tmp/cluster ./e2e/cluster
//	/tmp/cluster up --nodes 3
//	/tmp/cluster proxy 'kube-proxy --kubeconfig {kubeconfig} --hostname-override {node} --conntrack-max-per-core 0'
//	/tmp/cluster exec n1 iptables-save
//	/tmp/cluster test --name kube-proxy --version v1.37.2 --mode iptables --report report.yaml
//	/tmp/cluster down
//
// A node cannot set the kernel's nf_conntrack_max, so proxies get --conntrack-max-per-core 0.
//
// # What runs where
//
// A cluster is a tree of processes in namespaces. The first one, the machine, is in mount, process, network, IPC and
// UTS namespaces of its own. It runs the control plane (package cluster), a bridge that all nodes are connected to, and
// a load balancer: it routes the address of a Service of type LoadBalancer to the nodes. Each node is a process in
// further namespaces, also of cgroups, with /var, /run, /proc and /sys of its own; it runs kubelet, containerd and the
// proxy. The nodes are in three zones. Pods get their addresses from the plugins ptp and host-local, and host ports
// from portmap. DNS is CoreDNS.
//
// Nothing is written outside one folder, and one cgroup in each hierarchy, which gets ten times the processor time of
// an ordinary one while the machine is busy. When the first process ends, the kernel ends all others, and no interface
// or mount is left. If a run fails, its logs stay in the folder until the next cluster there. Sysctls that do not
// belong to a namespace are left as they are: to kubelet they seem to have the values that it would set.
//
// # What differs from a real cluster
//
// All nodes share one kernel, and with it one table of loaded modules. Every process in the machine's namespaces may do
// everything: kubelet authenticates nobody, and proxies have all rights. All images have the same files, Debian with
// the programs that tests run, whatever their name; the pause container is sleep. CoreDNS has only the plugins that a
// cluster and the tests configure. There is no route to the Internet.
package e2e
