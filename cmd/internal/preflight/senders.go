package preflight

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// sender is the source of a connection.
type sender struct {
	name string
	kind oracle.SourceKind
	addr netip.Addr
}

// findPods finds a pod of the node and a pod of another node, in each family. Endpoints may be programs in the network
// of a node, or outside the cluster.
func (m *move) findPods() {
	for _, cidr := range m.new.snapshot.Node().PodCIDRs {
		*m.localPod.At(model.FamilyOf(cidr.Addr())) = podIn(cidr)
	}
	for _, f := range model.Families() {
		if cidr := *m.others.podCIDR.At(f); cidr.IsValid() {
			*m.remotePod.At(f) = podIn(cidr)
		}
	}
	var foundLocal model.PerFamily[bool]
	for _, p := range []*proxy{m.old, m.new} {
		for entry := range p.snapshot.Services() {
			for _, e := range entry.Endpoints {
				a := e.Target.Addr()
				found, remote := foundLocal.At(e.Family()), m.remotePod.At(e.Family())
				switch {
				case e.Local && !*found && !m.isHost(a):
					*m.localPod.At(e.Family()), *found = a, true
				case !e.Local && e.Node != "" && !remote.IsValid() && !m.isHost(a) && !m.isOthers(a):
					*remote = a
				}
			}
		}
	}
}

// podIn returns an address of a pod in a node's range of them.
func podIn(podCIDR netip.Prefix) netip.Addr { return podCIDR.Addr().Next().Next() }

// outside returns an address outside the cluster, of a documentation range.
func outside(f model.Family) netip.Addr {
	if f == model.IPv6 {
		return netip.MustParseAddr("2001:db8::77")
	}
	return netip.AddrFrom4([4]byte{198, 51, 100, 77})
}

// senders are the senders of connections to a service, in each family.
type senders struct {
	all      model.PerFamily[[]sender] // one of each kind
	inRanges model.PerFamily[sender]   // one in the source ranges, which apply only to load-balancer IPs
}

// senders returns the senders to a service.
func (m *move) senders(s *model.Service) (from senders) {
	used := m.endpointsOf(s.Name)
	for _, f := range model.Families() {
		var all []sender
		for _, a := range m.new.packets.HostAddresses {
			if model.FamilyOf(a) == f {
				all = append(all, sender{"the node", oracle.Node, a})
				break
			}
		}
		if a := notOf(used, *m.localPod.At(f)); a.IsValid() {
			all = append(all, sender{"a pod of this node", oracle.LocalPod, a})
		}
		if a := notOf(used, *m.remotePod.At(f)); a.IsValid() {
			all = append(all, sender{"a pod of another node", oracle.RemotePod, a})
		}
		*from.all.At(f) = append(all, sender{"outside", oracle.External, outside(f)})
		*from.inRanges.At(f) = sender{"outside, in the source ranges", oracle.External, m.inRanges(s, f)}
	}
	return from
}

// to returns the senders that can reach an address of a service.
func (from *senders) to(s *model.Service, a netip.Addr) []sender {
	f := model.FamilyOf(a)
	if a.IsLoopback() {
		return []sender{{"the node", oracle.Node, a}}
	}
	all := *from.all.At(f)
	if in := *from.inRanges.At(f); in.addr.IsValid() && slices.Contains(s.LoadBalancerIPs, a) {
		return append(slices.Clip(all), in)
	}
	return all
}

// endpointsOf returns the addresses of a service's endpoints, for either proxy.
func (m *move) endpointsOf(name model.ServiceName) map[netip.Addr]struct{} {
	all := map[netip.Addr]struct{}{}
	for _, p := range []*proxy{m.old, m.new} {
		if entry := p.snapshot.Service(name); entry != nil {
			for _, e := range entry.Endpoints {
				all[e.Target.Addr()] = struct{}{}
			}
		}
	}
	return all
}

// notOf returns the address of a pod or, if that is an endpoint of a service, the next one that is not: what a pod
// sends to itself is a case of its own.
func notOf(endpoints map[netip.Addr]struct{}, a netip.Addr) netip.Addr {
	for a.IsValid() {
		if _, is := endpoints[a]; !is {
			break
		}
		a = a.Next()
	}
	return a
}

// inRanges returns an address in the source ranges of a service that is neither the node's nor a pod's.
func (m *move) inRanges(s *model.Service, f model.Family) netip.Addr {
	node := m.new.snapshot.Node()
	for _, r := range s.SourceRanges(f) {
		if a := r.Addr(); !m.isHost(a) &&
			!slices.ContainsFunc(node.PodCIDRs, func(c netip.Prefix) bool { return c.Contains(a) }) {
			return a
		}
	}
	return netip.Addr{}
}
