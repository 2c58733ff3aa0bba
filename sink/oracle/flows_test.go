package oracle

import (
	"math/rand/v2"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// comparison makes random flows for a state.
type comparison struct {
	*Oracle
	rng          *rand.Rand
	sources      map[model.Family][]flowSource
	destinations []flowDestination
}

type flowSource struct {
	kind SourceKind
	addr netip.Addr
}

type flowDestination struct {
	addr     netip.AddrPort
	protocol model.Protocol
}

// collect lists the sources and destinations that make a difference.
func (c *comparison) collect() {
	c.sources = map[model.Family][]flowSource{}
	from := func(kind SourceKind, a netip.Addr) {
		f := model.FamilyOf(a)
		c.sources[f] = append(c.sources[f], flowSource{kind, a})
	}
	for _, a := range []string{"203.0.113.77", "2001:db8:77::77"} { // reserved for documentation
		from(External, netip.MustParseAddr(a))
	}
	for _, a := range c.config.HostAddresses {
		from(Node, a)
	}
	for _, p := range c.node.PodCIDRs {
		from(LocalPod, p.Masked().Addr().Next())
	}
	for ep := range c.endpoints {
		kind := RemotePod
		if ep.Local {
			kind = LocalPod
		}
		from(kind, ep.Target.Addr())
		c.to(ep.Target.Addr(), ep.Port.Protocol, ep.Target.Port())
	}
	for svc := range c.services {
		for _, p := range svc.LoadBalancerSourceRanges {
			from(External, p.Masked().Addr())
		}
		for _, port := range svc.Ports {
			for _, list := range [][]netip.Addr{svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs} {
				for _, a := range list {
					// Its own port, as often as two others.
					c.to(a, port.Protocol, port.Port, port.Port, port.Port^1, port.NodePort)
				}
			}
			for _, a := range c.config.HostAddresses {
				c.to(a, port.Protocol, port.NodePort, port.Port)
			}
		}
	}
}

// to adds destinations. Number 0 is no port.
func (c *comparison) to(a netip.Addr, protocol model.Protocol, ports ...uint16) {
	for _, n := range ports {
		if n != 0 {
			c.destinations = append(c.destinations, flowDestination{netip.AddrPortFrom(a, n), protocol})
		}
	}
}

// flow returns a random flow.
func (c *comparison) flow() Flow {
	d := c.destinations[c.rng.IntN(len(c.destinations))]
	sources := c.sources[model.FamilyOf(d.addr.Addr())]
	s := sources[c.rng.IntN(len(sources))]
	return Flow{From: s.kind, Source: s.addr, Destination: d.addr, Protocol: d.protocol}
}
