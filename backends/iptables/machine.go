package iptables

import (
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/sysctl"
)

// machine is what is to be known of the machine besides iptables.
type machine struct {
	sysctls     sysctl.Root
	dropInvalid bool
	localnet    bool // route_localnet has been seen to
}

// newMachine reads what the network namespace of the calling thread is set to.
func newMachine(root sysctl.Root) *machine {
	m := &machine{sysctls: root}
	// A kernel that does not say is strict.
	liberal, err := m.sysctls.Get("net/netfilter/nf_conntrack_tcp_be_liberal")
	m.dropInvalid = err != nil || liberal == "0"
	return m
}

// allowLocalnet makes the kernel route packets with loopback addresses to other interfaces (S36).
func (m *machine) allowLocalnet() error {
	if m.localnet {
		return nil
	}
	if _, err := m.sysctls.SetInt("net/ipv4/conf/all/route_localnet", 1); err != nil {
		return fmt.Errorf("node ports on loopback addresses: %w", err)
	}
	m.localnet = true
	return nil
}
