package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/judge"
)

// configuration converts the setup to the judge's form.
func (s setup) configuration(families []model.Family) judge.Configuration {
	o, env := s.localstate(families), s.env(families)
	c := judge.Configuration{MasqueradeAll: s.masqueradeAll, NodePorts: env.NodePorts, LoopbackProxy: env.LoopbackProxy,
		LocalhostNodePorts: env.LocalhostNodePorts, ClusterCIDRs: o.DetectLocal.ClusterCIDRs,
		Bridge: o.DetectLocal.Bridge, InterfacePrefix: o.DetectLocal.InterfacePrefix}
	c.Local = localModes()[s.detector]
	return c
}

// localModes maps detectors to modes.
func localModes() []judge.LocalMode {
	return []judge.LocalMode{byNodeCIDR: judge.NodeCIDR, byClusterCIDR: judge.ClusterCIDR,
		byBridge: judge.BridgeInterface, byInterface: judge.InterfaceNamePrefix, undetected: judge.NoLocalMode}
}

// setupOf converts a program's assumed configuration. Node ports may be on the primary address, on all addresses, or on
// 127.0.0.1 as well.
func setupOf(c judge.Configuration) (setup, error) {
	s := setup{masqueradeAll: c.MasqueradeAll}
	modes := localModes()
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

// observe determines the configuration of a program that cannot be configured, from its treatment of a few packets.
func (b *testbed) observe(ctx context.Context) (setup, error) {
	svc := service{nodePort: true, ports: []servicePort{{protocol: model.TCP}}, endpoints: at(remotePod1)}
	if err := b.put(ctx, svc); err != nil {
		return setup{}, err
	}
	svc = svc.withDefaults(0)
	f := b.env.Families[0]
	reaches := func(from string, to destination, source netip.Addr) (reached, keeps bool) {
		flow := svc.flow(network.PlaceNamed(from), to, 0, f)
		if source.IsValid() {
			flow.Source = source
		}
		for range 5 {
			seen := b.try(flow, network.Timeouts{Answer: b.timeouts.Answer / 4}) // 500 ms, more on a slow machine
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

// String describes the configuration.
func (s setup) String() string {
	return fmt.Sprintf("local pods by %v, node ports %v, masquerade all %t", s.detector, s.nodePorts, s.masqueradeAll)
}
