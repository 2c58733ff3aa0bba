package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Network is the test network:
//
//	local-1  local-2  local-3
//	     \      |      /                               (narrow)
//	      \  bridge   /            remote-1  remote-2  far-pod     remote-3
//	       \    |    /                   |             /              |
//	        [  node  ] --------- [ other-node ] ------      [ third-node ]
//	         |   |   \____________________________________/
//	  [ client ] [ outside ]
//
// The node routes between all of them. Its default route goes to outside, which answers every packet with an ICMP
// error: that distinguishes a packet to a service address that left the node unchanged from one that the node dropped.
type Network struct {
	families []model.Family

	Node *namespace
	// namespaces maps the names of hosts, and outside, to their namespaces.
	namespaces map[string]*namespace
	servers    *servers
	router     *outsideRouter
	ports      *portAllocator
	sctp       sctpMode
}

// New creates the network in these IP families and starts its servers. The seed determines clients' source ports.
func New(families []model.Family, seed uint64) (*Network, error) {
	n := &Network{families: families, namespaces: map[string]*namespace{}, ports: newPortAllocator(seed)}
	if err := n.build(); err != nil {
		n.Close()
		return nil, fmt.Errorf("build the test network: %w", err)
	}
	return n, nil
}

func (n *Network) build() error {
	for _, name := range []string{TheNode, OtherNode, ThirdNode, Client, outside, FarPod, LocalPod1, LocalPod2,
		LocalPod3} {
		if err := n.add(name); err != nil {
			return err
		}
	}
	if err := n.wireBridge(); err != nil {
		return err
	}
	for _, link := range []struct {
		name, to string
		net      func(Plan) netip.Prefix
	}{
		{"kpl-other", OtherNode, func(p Plan) netip.Prefix { return p.ToOtherNode }},
		{"kpl-third", ThirdNode, func(p Plan) netip.Prefix { return p.toThirdNode }},
		{"kpl-client", Client, func(p Plan) netip.Prefix { return p.toClient }},
		{"kpl-outside", outside, func(p Plan) netip.Prefix { return p.toOutside }},
	} {
		if err := n.wire(link.name, n.namespaces[link.to], link.net); err != nil {
			return err
		}
	}
	if err := n.route(); err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	if err := n.wireFarPod(); err != nil {
		return fmt.Errorf("%s: %w", FarPod, err)
	}
	var err error
	if n.router, err = startOutsideRouter(n.namespaces[outside], n.families); err != nil {
		return err
	}
	if n.sctp, err = probeSCTP(); err != nil {
		return err
	}
	n.servers, err = startServers(n)
	return err
}

// Close removes the network.
func (n *Network) Close() {
	if n.servers != nil {
		n.servers.close()
	}
	if n.router != nil {
		n.router.close()
	}
	for _, ns := range n.namespaces {
		ns.Close()
	}
}

// outside is the namespace that answers every packet with an ICMP error.
const outside = "outside"

// namespaceOf returns a host's namespace.
func (n *Network) namespaceOf(h Host) *namespace {
	name := h.Name
	switch name {
	case Client2:
		name = Client
	case RemotePod1, RemotePod2:
		name = OtherNode
	case RemotePod3:
		name = ThirdNode
	}
	return n.namespaces[name]
}

// add creates a namespace and sets the kernel parameters that the tests need.
func (n *Network) add(name string) error {
	ns, err := newNamespace(name)
	if err != nil {
		return err
	}
	n.namespaces[name] = ns
	forwarding := "1"
	switch name {
	case TheNode:
		n.Node = ns
	case outside:
		forwarding = "0"
	}
	sysctls := []sysctl{
		{"ipv4/ip_forward", forwarding},
		{"ipv4/conf/all/send_redirects", "0"}, // pods reach each other through the bridge's address
		{"ipv4/conf/default/send_redirects", "0"},
		{"ipv4/conf/all/rp_filter", "0"},
		{"ipv4/conf/default/rp_filter", "0"},
		{"ipv4/icmp_ratemask", "0"}, // no rate limit for the errors of refused connections
	}
	if slices.Contains(n.families, model.IPv6) {
		sysctls = append(sysctls, []sysctl{
			{"ipv6/conf/all/forwarding", forwarding},
			{"ipv6/conf/all/accept_dad", "0"}, // addresses are usable at once
			{"ipv6/conf/default/accept_dad", "0"},
			{"ipv6/conf/all/accept_ra", "0"},
			{"ipv6/conf/default/accept_ra", "0"},
			{"ipv6/icmp/ratelimit", "0"},
			{"ipv6/ip_nonlocal_bind", "1"}, // for the client, which uses all addresses of a range
		}...)
	}
	if err := ns.setSysctls(sysctls); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	// Kernels with bridge netfilter enable it by default. It would treat translated packets as bridged ones, which a
	// bridge never sends back to the pod that they came from. Pods here are routed.
	for _, path := range []string{"bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"} {
		if err := ns.setSysctls([]sysctl{{path, "0"}}); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return ns.linkUp("lo")
}

// addBridge adds the bridge to the node, with the gateway's addresses.
func (n *Network) addBridge() error {
	// With a hardware address of its own: otherwise it takes a pod's, and may change it with every new pod.
	mac := net.HardwareAddr{0x02, 'k', 'p', 'l', 0, 1}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: BridgeName, HardwareAddr: mac}}
	if err := n.Node.Do(func() error { return netlink.LinkAdd(bridge) }); err != nil {
		return fmt.Errorf("add bridge: %w", err)
	}
	var errs []error
	for _, f := range n.families {
		p := PlanOf(f)
		errs = append(errs, n.Node.addAddr(BridgeName, netip.PrefixFrom(p.gateway, p.LocalPods.Bits())))
	}
	return errors.Join(append(errs, n.Node.linkUp(BridgeName))...)
}

// wireBridge connects the local pods. Each has only its own address, and reaches everything else through the node.
func (n *Network) wireBridge() error {
	if err := n.addBridge(); err != nil {
		return err
	}
	for i, name := range []string{LocalPod1, LocalPod2, LocalPod3} {
		port := fmt.Sprintf("kpl-pod%d", i+1)
		if err := veth(n.Node, port, n.namespaces[name]); err != nil {
			return err
		}
		err := n.Node.onLink(port, func(link netlink.Link) error {
			bridge, err := netlink.LinkByName(BridgeName)
			if err != nil {
				return err
			}
			return netlink.LinkSetMaster(link, bridge)
		})
		if err != nil {
			return err
		}
		for _, f := range n.families {
			if err := n.wirePod(name, f, n.Node, BridgeName, PlanOf(f).gateway); err != nil {
				return err
			}
		}
	}
	return nil
}

// wirePod gives a pod its address and a default route through its node.
func (n *Network) wirePod(name string, f model.Family, node *namespace, link string, gateway netip.Addr) error {
	pod, addr := n.namespaces[name], HostNamed(name).Addr(f)
	return errors.Join(
		pod.addAddr("eth0", HostPrefix(addr)),
		pod.addRoute("eth0", HostPrefix(gateway), netip.Addr{}, netlink.Route{}),
		pod.addRoute("eth0", anywhere(f), gateway, netlink.Route{}),
		introduce(node, link, gateway, pod, addr))
}

// wire links the node to another namespace, with a network of each family.
func (n *Network) wire(name string, to *namespace, network func(Plan) netip.Prefix) error {
	if err := veth(n.Node, name, to); err != nil {
		return err
	}
	var errs []error
	for _, f := range n.families {
		prefix := network(PlanOf(f))
		near, far := Nth(prefix, 1), Nth(prefix, 2)
		errs = append(errs, n.Node.addAddr(name, netip.PrefixFrom(near, prefix.Bits())),
			to.addAddr("eth0", netip.PrefixFrom(far, prefix.Bits())),
			introduce(n.Node, name, near, to, far))
	}
	return errors.Join(errs...)
}

// veth creates a pair of interfaces, both up: name in one namespace, eth0 in the other.
func veth(from *namespace, name string, to *namespace) error {
	err := from.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(to.FD())})
	})
	if err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	return errors.Join(from.linkUp(name), to.linkUp("eth0"))
}

// introduce adds permanent neighbour entries at both ends of a link, so that no packet waits for address resolution.
func introduce(node *namespace, nodeLink string, nodeAddr netip.Addr, to *namespace, addr netip.Addr) error {
	nodeMAC, err1 := node.hardwareAddr(nodeLink)
	mac, err2 := to.hardwareAddr("eth0")
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	return errors.Join(node.addNeighbour(nodeLink, addr, mac), to.addNeighbour("eth0", nodeAddr, nodeMAC))
}

// wireFarPod connects the far pod to its node. Only routers on the path know the small MTU: the pod's own link has a
// larger one, so its TCP does not announce the small one.
func (n *Network) wireFarPod() error {
	const link = "kpl-far"
	otherNode := n.namespaces[OtherNode]
	if err := veth(otherNode, link, n.namespaces[FarPod]); err != nil {
		return err
	}
	var errs []error
	for _, f := range n.families {
		node, pod := HostNamed(OtherNode).Addr(f), HostPrefix(HostNamed(FarPod).Addr(f))
		errs = append(errs, n.Node.addRoute("kpl-other", pod, node, netlink.Route{}),
			otherNode.addRoute(link, pod, netip.Addr{}, netlink.Route{MTU: FarMTU, MTULock: true}),
			n.wirePod(FarPod, f, otherNode, link, node))
	}
	return errors.Join(errs...)
}

// route adds the routes beyond the links.
func (n *Network) route() error {
	var errs []error
	add := func(ns *namespace, link string, to netip.Prefix, via netip.Addr, r netlink.Route) {
		errs = append(errs, ns.addRoute(link, to, via, r))
	}
	for _, f := range n.families {
		p := PlanOf(f)
		add(n.Node, "kpl-client", p.Clients, Nth(p.toClient, 2), netlink.Route{})
		add(n.Node, "kpl-outside", anywhere(f), Nth(p.toOutside, 2),
			netlink.Route{Src: HostNamed(TheNode).Addr(f).AsSlice()})
		for _, far := range []struct {
			node, link string
			net        netip.Prefix
			pods       []string
		}{
			{OtherNode, "kpl-other", p.ToOtherNode, []string{RemotePod1, RemotePod2}},
			{ThirdNode, "kpl-third", p.toThirdNode, []string{RemotePod3}},
		} {
			node := n.namespaces[far.node]
			for _, name := range far.pods {
				pod := HostPrefix(HostNamed(name).Addr(f))
				add(n.Node, far.link, pod, Nth(far.net, 2), netlink.Route{})
				errs = append(errs, node.addAddr("lo", pod))
			}
			add(node, "eth0", anywhere(f), Nth(far.net, 1), netlink.Route{})
		}
		client := n.namespaces[Client]
		add(client, "lo", p.Clients, netip.Addr{},
			netlink.Route{Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST})
		add(client, "eth0", anywhere(f), Nth(p.toClient, 1), netlink.Route{})
		for _, back := range []netip.Prefix{p.AllPods, p.Clients, p.ToOtherNode, p.toThirdNode, p.toClient} {
			add(n.namespaces[outside], "eth0", back, Nth(p.toOutside, 1), netlink.Route{})
		}
	}
	return errors.Join(errs...)
}

// GiveToNode adds an address of each family to one of the node's links.
func (n *Network) GiveToNode(link string, addr func(model.Family) netip.Addr) error {
	var errs []error
	for _, f := range n.families {
		errs = append(errs, n.Node.addAddr(link, HostPrefix(addr(f))))
	}
	return errors.Join(errs...)
}

// TakeFromNode removes the addresses from the link, if they exist.
func (n *Network) TakeFromNode(link string, addr func(model.Family) netip.Addr) error {
	var errs []error
	for _, f := range n.families {
		errs = append(errs, n.Node.delAddr(link, HostPrefix(addr(f))))
	}
	return errors.Join(errs...)
}
