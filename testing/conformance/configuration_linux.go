package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// configuration returns the setup as a program is configured.
func (s setup) configuration(families []model.Family) Configuration {
	o, env := s.localstate(families), s.env(families)
	c := Configuration{MasqueradeAll: s.masqueradeAll, NodePorts: env.NodePorts, LoopbackProxy: env.LoopbackProxy,
		LocalhostNodePorts: env.LocalhostNodePorts, ClusterCIDRs: o.DetectLocal.ClusterCIDRs,
		Bridge: o.DetectLocal.Bridge, InterfacePrefix: o.DetectLocal.InterfacePrefix}
	c.Local = [...]LocalMode{NodeCIDR, ClusterCIDR, BridgeInterface, InterfaceNamePrefix, NoLocalMode}[s.detector]
	return c
}

// setupOf returns the setup for a configuration that a program is assumed to have. The node ports of that are on the
// primary address, on all addresses, or on 127.0.0.1 as well.
func setupOf(c Configuration) (setup, error) {
	s := setup{masqueradeAll: c.MasqueradeAll}
	modes := []LocalMode{NodeCIDR, ClusterCIDR, BridgeInterface, InterfaceNamePrefix, NoLocalMode}
	i := slices.Index(modes, c.Local)
	if i < 0 {
		return s, fmt.Errorf("there is no way to detect local pods that is called %q", c.Local)
	}
	s.detector = detector(i)
	switch {
	case c.NodePorts.Primary:
		s.nodePorts = onNodeIPs
	case c.LocalhostNodePorts:
		s.nodePorts = onLocalhostToo
	default:
		s.nodePorts = onAllAddresses
	}
	return s, nil
}

// observe finds out how a program is configured that is always started in one way, by what it does to a few packets.
func (s *session) observe(ctx context.Context) (setup, error) {
	svc := service{nodePort: true, ports: []servicePort{{protocol: model.TCP}}, endpoints: at(remotePod1)}
	if err := s.put(ctx, svc); err != nil {
		return setup{}, err
	}
	svc = svc.withDefaults(0)
	f := s.env.Families[0]
	reaches := func(from string, to destination, source netip.Addr) (reached, keeps bool) {
		flow := svc.flow(network.PlaceNamed(from), to, 0, f)
		if source.IsValid() {
			flow.Source = source
		}
		for range 5 {
			seen := s.try(flow, network.Patience{Answer: s.patience.Answer / 4}) // 500 ms, longer on a slow machine
			if seen.Verdict == oracle.Deliver {
				return true, seen.Source == flow.Source
			}
		}
		return false, false
	}
	var found setup
	_, keepsClient := reaches(client, toClusterIP, netip.Addr{})
	_, keepsRemote := reaches(remotePod3, toClusterIP, netip.Addr{})
	local, keepsLocal := reaches(localPod3, toClusterIP, netip.Addr{})
	switch {
	case keepsClient:
		found.detector = undetected
	case keepsRemote:
		found.detector = byClusterCIDR
	case local && !keepsLocal:
		found.masqueradeAll = true
	}
	if other, _ := reaches(client, toOtherNodePort, netip.Addr{}); other {
		found.nodePorts = onAllAddresses
		loopback := toLoopbackNodePort.resolve(svc, 0, f).Addr()
		if f == model.IPv4 {
			if on, _ := reaches(theNode, toLoopbackNodePort, loopback); on {
				found.nodePorts = onLocalhostToo
			}
		}
	}
	return found, nil
}

// String says how the node is configured, in words.
func (s setup) String() string {
	return fmt.Sprintf("local pods by %v, node ports %v, masquerade all %t", s.detector, s.nodePorts, s.masqueradeAll)
}
