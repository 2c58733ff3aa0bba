package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// OtherNodes knows the addresses of the other nodes of the cluster. A service may list one as an external IP or VIP,
// where only the service's ports are then taken (S63). Its methods may be called concurrently.
type OtherNodes interface {
	// Addresses returns the addresses, sorted; the list is never changed, and a new one differs. It is called when a
	// service has an external IP or VIP for the first time, and then for every Sync. Until all nodes are known, only the
	// services' ports are taken at every such address that is new.
	Addresses() (list []netip.Addr, known bool)
	// Changed receives a value soon after the addresses have changed.
	Changed() <-chan struct{}
}

// errAPIServer is why a port of an external IP or VIP is not served.
var errAPIServer = errors.New("the address and port are an API server's, which this node itself needs: " +
	"use another port")

// apiServers returns the addresses and ports of the API servers, sorted: the present endpoints of default/kubernetes.
func apiServers(c *frontend.Changes) (list []netip.AddrPort) {
	pc := c.Port(model.PortName{Service: model.ServiceName{Namespace: "default", Name: "kubernetes"}, Port: "https",
		Protocol: model.TCP})
	if pc == nil {
		return nil
	}
	for _, ep := range pc.Endpoints(model.ClusterSet) {
		list = append(list, ep.Target)
	}
	slices.SortFunc(list, model.CompareTargets)
	return list
}

// isBarred reports whether a virtual server would take the node's connections to an API server: on an address that is
// not the node's own.
func (c *config) isBarred(k dp.ServerKey) bool {
	return k.Protocol == model.TCP && slices.Contains(c.apiServers, netip.AddrPortFrom(k.Addr, k.Port)) &&
		!has(c.hostIPs, k.Addr)
}

// has reports whether a sorted list has an address.
func has(list []netip.Addr, a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(list, a, netip.Addr.Compare)
	return found
}

// others are the machines whose addresses services list (S63). On the dummy interface such an address would be the
// node's own, and nothing of this node would reach the machine any more. So only packets to a service's address,
// protocol and port are delivered to the node: the packet filter marks them, and a routing rule knows the mark. What
// the node itself sends needs no delivery: IPVS sees it on output.
type others struct {
	family model.Family
	bit    uint32       // of the mark
	nodes  OtherNodes   // nil: none are known
	named  []netip.Addr // by which this node reaches the API servers

	apiServers []netip.AddrPort
	listed     []netip.Addr // of the nodes, as last seen
	unknown    bool         // not all nodes are known yet
	following  bool         // the nodes have been asked for

	ports     map[netip.Addr]keys // virtual servers, packets to which are marked
	delivered uint32              // the bit by which the kernel delivers
}

func newOthers(f model.Family, o *Options) *others {
	return &others{family: f, bit: o.deliveryBit(), nodes: o.OtherNodes, named: o.APIServers,
		ports: map[netip.Addr]keys{}}
}

// have reports whether an address is another machine's, or may be.
func (o *others) have(addr netip.Addr, bound bool) bool {
	return o.unknown && !bound || has(o.listed, addr) || slices.Contains(o.named, addr) ||
		slices.ContainsFunc(o.apiServers, func(a netip.AddrPort) bool { return a.Addr() == addr })
}

// follow updates the API servers, and, if services have external addresses, the nodes' addresses. It returns those of
// the external addresses that may have become another machine's, or none's.
func (o *others) follow(apiServers []netip.AddrPort, external map[netip.Addr]bool) map[netip.Addr]bool {
	concerned := map[netip.Addr]bool{}
	if !slices.Equal(o.apiServers, apiServers) {
		for _, list := range [][]netip.AddrPort{o.apiServers, apiServers} {
			for _, server := range list {
				if external[server.Addr()] {
					concerned[server.Addr()] = true
				}
			}
		}
		o.apiServers = apiServers
	}
	if o.nodes == nil || len(external) == 0 && !o.following {
		return concerned
	}
	o.following = true
	list, known := o.nodes.Addresses()
	before, wasUnknown := o.listed, o.unknown
	o.listed, o.unknown = list, !known
	if o.unknown != wasUnknown {
		return external
	}
	if len(list) != len(before) || len(list) > 0 && &list[0] != &before[0] { // a list is never changed
		for _, addr := range slices.Concat(before, list) {
			if external[addr] && has(before, addr) != has(list, addr) {
				concerned[addr] = true
			}
		}
	}
	return concerned
}

// chains mark packets to ports of other machines' addresses before they are routed, and clear the mark when they have
// been delivered. They exist only while there are such ports, because every packet of the node passes them.
func (o *others) chains(s *sets) []rules.Chain {
	return []rules.Chain{
		{Chain: nft.Chain{Name: "deliver-prerouting", Hook: nft.Prerouting, Priority: deliveryPriority, Filter: true},
			Rules: []nft.Rule{rules.Commented("services at addresses of other machines", nft.InSet{Set: s[otherIPs]},
				nft.SetMark{Bit: o.bit})}},
		{Chain: nft.Chain{Name: "deliver-input", Hook: nft.Input, Priority: deliveryPriority, Filter: true},
			Rules: []nft.Rule{rules.Rule(nft.HasMark{Bit: o.bit}, nft.FlipMark{Bit: o.bit})}},
	}
}

// deliveryPriority is the priority that nft calls mangle: before routing, and before IPVS compares marks.
const deliveryPriority = -150

// takePort makes the filter mark packets to a virtual server.
func (o *others) takePort(f *filter, key dp.ServerKey) {
	list := o.ports[key.Addr]
	if list[key] {
		return
	}
	if list == nil {
		list = keys{}
		o.ports[key.Addr] = list
	}
	list[key] = true
	o.mark(f, key)
}

// releasePort is the opposite of takePort.
func (o *others) releasePort(f *filter, key dp.ServerKey) {
	list := o.ports[key.Addr]
	if !list[key] {
		return
	}
	if delete(list, key); len(list) == 0 {
		delete(o.ports, key.Addr)
	}
	f.unset(otherPort(key))
	for _, c := range o.chains(f.sets) {
		f.release([]string{c.Name})
	}
}

// markAll makes the filter mark packets again after its content was forgotten.
func (o *others) markAll(f *filter) {
	for _, list := range o.ports {
		for key := range list {
			o.mark(f, key)
		}
	}
}

func (o *others) mark(f *filter, key dp.ServerKey) {
	f.hold(nil, o.chains(f.sets))
	f.set(otherPort(key))
}

func otherPort(k dp.ServerKey) element {
	return element{set: otherIPs, key: rules.Key(k.Addr, k.Protocol, k.Port)}
}

// deliver makes the kernel deliver marked packets while services have ports at other machines' addresses.
func (o *others) deliver(ctx context.Context, d dp.Interface) error {
	bit := o.bit
	if len(o.ports) == 0 {
		bit = 0
	}
	if o.delivered == bit {
		return nil
	}
	err := d.Deliver(ctx, o.family, bit)
	if err == nil {
		o.delivered = bit
	}
	return err
}

// read reads what delivers packets.
func (o *others) read(ctx context.Context, d dp.Interface) (err error) {
	o.delivered, err = d.Delivery(ctx, o.family, o.bit)
	return err
}

// repair restores what another program has deleted of the rule and the route. The kernel does not report that, so they
// are checked from time to time.
func (o *others) repair(ctx context.Context, d dp.Interface) (repaired bool, err error) {
	if o.delivered == 0 {
		return false, nil
	}
	got, err := d.Delivery(ctx, o.family, o.bit)
	if err != nil || got == o.delivered {
		return false, err
	}
	o.delivered = got
	return true, o.deliver(ctx, d)
}
