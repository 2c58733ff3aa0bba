package judge

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// configurationOf converts a setup to the judge's form.
func configurationOf(s cluster.Setup, families []model.Family) program.Configuration {
	o, env := s.Localstate(families), s.Env(families)
	c := program.Configuration{MasqueradeAll: s.MasqueradeAll, NodePorts: env.NodePorts, LoopbackProxy: env.LoopbackProxy,
		LocalhostNodePorts: env.LocalhostNodePorts, ClusterCIDRs: o.DetectLocal.ClusterCIDRs,
		Bridge: o.DetectLocal.Bridge, InterfacePrefix: o.DetectLocal.InterfacePrefix}
	c.Local = localModes()[s.Detector]
	return c
}

// localModes maps detectors to modes.
func localModes() []program.LocalMode {
	return []program.LocalMode{cluster.ByNodeCIDR: program.NodeCIDR, cluster.ByClusterCIDR: program.ClusterCIDR,
		cluster.ByBridge: program.BridgeInterface, cluster.ByInterface: program.InterfaceNamePrefix,
		cluster.Undetected: program.NoLocalMode}
}

// setupOf converts a program's assumed configuration. Node ports may be on the primary address, on all addresses, or on
// 127.0.0.1 as well.
func setupOf(c program.Configuration) (cluster.Setup, error) {
	s := cluster.Setup{MasqueradeAll: c.MasqueradeAll}
	modes := localModes()
	i := slices.Index(modes, c.Local)
	if i < 0 {
		return s, fmt.Errorf("there is no way to detect local pods that is called %q", c.Local)
	}
	s.Detector = cluster.Detector(i)
	switch {
	case c.NodePorts.Primary:
		s.NodePorts = cluster.OnNodeIPs
	case c.LocalhostNodePorts:
		s.NodePorts = cluster.OnLocalhostToo
	default:
		s.NodePorts = cluster.OnAllAddresses
	}
	return s, nil
}

// observe determines the configuration of a program that cannot be configured, from its treatment of a few packets.
func observe(ctx context.Context, b *testbed.Testbed) (cluster.Setup, error) {
	svc := cluster.Service{NodePort: true, Ports: []cluster.ServicePort{{Protocol: model.TCP}},
		Endpoints: cluster.At(network.RemotePod1)}
	if err := b.Put(ctx, svc); err != nil {
		return cluster.Setup{}, err
	}
	svc = svc.WithDefaults(0)
	f := b.Env.Families[0]
	reaches := func(from string, to cluster.Destination, source netip.Addr) (reached, keeps bool) {
		flow := svc.Flow(network.HostNamed(from), to, 0, f)
		if source.IsValid() {
			flow.Source = source
		}
		for range 5 {
			seen := b.Try(flow, network.Timeouts{Answer: b.Timeouts.Answer / 4}) // 500 ms, more on a slow machine
			if seen.Verdict == oracle.Deliver {
				return true, seen.Source == flow.Source
			}
		}
		return false, false
	}
	var found cluster.Setup
	_, keepsClient := reaches(network.Client, cluster.ToClusterIP, netip.Addr{})
	_, keepsRemote := reaches(network.RemotePod3, cluster.ToClusterIP, netip.Addr{})
	local, keepsLocal := reaches(network.LocalPod3, cluster.ToClusterIP, netip.Addr{})
	switch {
	case keepsClient:
		found.Detector = cluster.Undetected
	case keepsRemote:
		found.Detector = cluster.ByClusterCIDR
	case local && !keepsLocal:
		found.MasqueradeAll = true
	}
	if other, _ := reaches(network.Client, cluster.ToOtherNodePort, netip.Addr{}); other {
		found.NodePorts = cluster.OnAllAddresses
		loopback := cluster.ToLoopbackNodePort.Resolve(svc, 0, f).Addr()
		if f == model.IPv4 {
			if on, _ := reaches(network.TheNode, cluster.ToLoopbackNodePort, loopback); on {
				found.NodePorts = cluster.OnLocalhostToo
			}
		}
	}
	return found, nil
}
