package iptables

import (
	"context"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/sysctl"
)

// machine is what is to be known of the machine besides iptables.
type machine struct {
	sysctls     sysctl.Root
	dropInvalid bool
	localnet    bool // route_localnet is set, or was
	told        bool // that it is not and cannot be set
}

// newMachine reads what the network namespace of the calling thread is set to.
func newMachine(root sysctl.Root) *machine {
	m := &machine{sysctls: root}
	// A kernel that does not say is strict.
	liberal, err := m.sysctls.Get("net/netfilter/nf_conntrack_tcp_be_liberal")
	m.dropInvalid = err != nil || liberal == "0"
	return m
}

// allowLocalnet makes the kernel route packets with loopback addresses to other interfaces (S36). A process in a container may not
// be allowed to: then everything else is served all the same.
func (m *machine) allowLocalnet(ctx context.Context) {
	_, err := m.sysctls.SetInt("net/ipv4/conf/all/route_localnet", 1)
	if err == nil {
		m.localnet = true
	} else if !m.told {
		klog.FromContext(ctx).Error(err, "Node ports are not served on loopback addresses; a resync tries again")
	}
	m.told = err != nil
}
