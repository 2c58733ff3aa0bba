package iptables

import (
	"context"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
)

// kernel is the kernel configuration that rules depend on.
type kernel struct {
	sysctls     sysctl.Root
	dropInvalid bool
	localnet    bool // route_localnet is set, or was
	told        bool // it has been logged that it is not and cannot be set
}

// newKernel reads the configuration of the calling thread's network namespace.
func newKernel(root sysctl.Root) *kernel {
	k := &kernel{sysctls: root}
	// A kernel without the parameter is strict.
	liberal, err := k.sysctls.Get("net/netfilter/nf_conntrack_tcp_be_liberal")
	k.dropInvalid = err != nil || liberal == "0"
	return k
}

// allowLocalnet makes the kernel route packets with loopback addresses to other interfaces (S36). A process in a
// container may not be allowed to; everything else is served anyway.
func (k *kernel) allowLocalnet(ctx context.Context) {
	_, err := k.sysctls.SetInt("net/ipv4/conf/all/route_localnet", 1)
	if err == nil {
		k.localnet = true
	} else if !k.told {
		klog.FromContext(ctx).Error(err, "Node ports are not served on loopback addresses; a resync tries again")
	}
	k.told = err != nil
}
