package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// network is the test network:
//
//	local-1  local-2  local-3
//	     \      |      /                               (narrow)
//	      \  bridge   /            remote-1  remote-2  far-pod     remote-3
//	       \    |    /                   |             /              |
//	        [  node  ] --------- [ other-node ] ------      [ third-node ]
//	         |   |   \____________________________________/
//	  [ client ] [ outside ]
//
// The node routes between all of them. Its default route points outside, where every packet is answered with an ICMP
// error. That tells a packet to a service address that left the node unchanged from one that the node dropped.
type network struct {
	families []model.Family

	node, otherNode, thirdNode, client, outside, far *namespace
	// localPods by name.
	localPods map[string]*namespace
	all       []*namespace
	servers   *servers
	router    *outsideRouter
	ports     *portAllocator
	sctp      sctpWay

	// forward is set in a simulation, which needs no other field.
	forward    Forward
	sourcePort atomic.Uint32
}

// newNetwork builds the network, in the IP families that the machine has, and starts its servers. The seed determines
// the source ports of clients.
func newNetwork(families []model.Family, seed uint64) (*network, error) {
	n := &network{families: families, localPods: map[string]*namespace{}, ports: newPortAllocator(seed)}
	if err := n.build(); err != nil {
		n.close()
		return nil, fmt.Errorf("build the test network: %w", err)
	}
	return n, nil
}

func (n *network) build() error {
	for _, ns := range []struct {
		name string
		slot **namespace
	}{{theNode, &n.node}, {otherNode, &n.otherNode}, {thirdNode, &n.thirdNode}, {client, &n.client},
		{"outside", &n.outside},
		{farPod, &n.far}} {
		made, err := n.add(ns.name)
		if err != nil {
			return err
		}
		*ns.slot = made
	}
	for _, pod := range []string{localPod1, localPod2, localPod3} {
		made, err := n.add(pod)
		if err != nil {
			return err
		}
		n.localPods[pod] = made
	}
	if err := n.wireBridge(); err != nil {
		return err
	}
	for _, link := range []struct {
		name string
		to   *namespace
		net  func(plan) netip.Prefix
	}{
		{"kpl-other", n.otherNode, func(p plan) netip.Prefix { return p.toOtherNode }},
		{"kpl-third", n.thirdNode, func(p plan) netip.Prefix { return p.toThirdNode }},
		{"kpl-client", n.client, func(p plan) netip.Prefix { return p.toClient }},
		{"kpl-outside", n.outside, func(p plan) netip.Prefix { return p.toOutside }},
	} {
		if err := n.wire(link.name, link.to, link.net); err != nil {
			return fmt.Errorf("link %s: %w", link.name, err)
		}
	}
	if err := n.route(); err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	if err := n.wireFarPod(); err != nil {
		return fmt.Errorf("%s: %w", farPod, err)
	}
	var err error
	if n.router, err = startOutsideRouter(n.outside, n.families); err != nil {
		return err
	}
	if n.sctp, err = probeSCTP(); err != nil {
		return err
	}
	n.servers, err = startServers(n)
	return err
}

// close takes the network down.
func (n *network) close() {
	if n.servers != nil {
		n.servers.close()
	}
	if n.router != nil {
		n.router.close()
	}
	for _, ns := range n.all {
		ns.Close()
	}
}

// namespaceOf returns the namespace that a place is in.
func (n *network) namespaceOf(p place) *namespace {
	switch p.name {
	case theNode:
		return n.node
	case client, client2:
		return n.client
	case farPod:
		return n.far
	case thirdNode, remotePod3:
		return n.thirdNode
	}
	if ns := n.localPods[p.name]; ns != nil {
		return ns
	}
	return n.otherNode
}

// add makes a namespace with the kernel parameters that the tests need.
func (n *network) add(name string) (*namespace, error) {
	ns, err := newNamespace(name)
	if err != nil {
		return nil, err
	}
	n.all = append(n.all, ns)
	forwarding := "1"
	if name == "outside" {
		forwarding = "0"
	}
	sysctls := []sysctl{
		{"ipv4/ip_forward", forwarding},
		{"ipv4/conf/all/send_redirects", "0"}, // pods reach each other through the bridge's address
		{"ipv4/conf/default/send_redirects", "0"},
		{"ipv4/conf/all/rp_filter", "0"},
		{"ipv4/conf/default/rp_filter", "0"},
		{"ipv4/icmp_ratemask", "0"}, // every refused connection gets its error
	}
	if slices.Contains(n.families, model.IPv6) {
		sysctls = append(sysctls, []sysctl{
			{"ipv6/conf/all/forwarding", forwarding},
			{"ipv6/conf/all/accept_dad", "0"}, // addresses are usable at once
			{"ipv6/conf/default/accept_dad", "0"},
			{"ipv6/conf/all/accept_ra", "0"},
			{"ipv6/conf/default/accept_ra", "0"},
			{"ipv6/icmp/ratelimit", "0"},
			{"ipv6/ip_nonlocal_bind", "1"}, // for the client, which owns a whole range
		}...)
	}
	if err := ns.setSysctls(sysctls); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	// A kernel that can filter bridged packets does so by default. It then takes translated packets for bridged ones,
	// which a bridge never sends back to the pod that they came from. Pods here are routed.
	for _, path := range []string{"bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"} {
		if err := ns.setSysctls([]sysctl{{path, "0"}}); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return ns, ns.Do(func() error { return linkUp("lo") })
}

// wireBridge connects the local pods: each has only its own address, and reaches everything else through the node.
func (n *network) wireBridge() error {
	err := n.node.Do(func() error {
		// Its own hardware address: else it takes that of a pod, and may change it with every new one.
		mac := net.HardwareAddr{0x02, 'k', 'p', 'l', 0, 1}
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName,
			HardwareAddr: mac}}); err != nil {
			return fmt.Errorf("add bridge: %w", err)
		}
		for _, f := range n.families {
			p := planOf(f)
			if err := addAddr(bridgeName, netip.PrefixFrom(p.gateway, p.localPods.Bits())); err != nil {
				return err
			}
		}
		return linkUp(bridgeName)
	})
	if err != nil {
		return err
	}
	for i, name := range []string{localPod1, localPod2, localPod3} {
		pod, ns := placeNamed(name), n.localPods[name]
		port := fmt.Sprintf("kpl-pod%d", i+1)
		if err := n.veth(n.node, port, ns); err != nil {
			return err
		}
		err := n.node.Do(func() error {
			bridge, err := netlink.LinkByName(bridgeName)
			if err != nil {
				return err
			}
			link, err := netlink.LinkByName(port)
			if err != nil {
				return err
			}
			return netlink.LinkSetMaster(link, bridge)
		})
		if err != nil {
			return fmt.Errorf("attach %s to the bridge: %w", port, err)
		}
		for _, f := range n.families {
			p := planOf(f)
			err := ns.Do(func() error {
				if err := addAddr("eth0", hostPrefix(pod.addr(f))); err != nil {
					return err
				}
				if err := addRoute("eth0", hostPrefix(p.gateway), netip.Addr{}, netip.Addr{}); err != nil {
					return err
				}
				return addRoute("eth0", anywhere(f), p.gateway, netip.Addr{})
			})
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := introduce(n.node, bridgeName, p.gateway, ns, pod.addr(f)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// wire connects the node to another namespace by a link with a network of each family.
func (n *network) wire(name string, to *namespace, network func(plan) netip.Prefix) error {
	if err := n.veth(n.node, name, to); err != nil {
		return err
	}
	for _, f := range n.families {
		prefix := network(planOf(f))
		near, far := nth(prefix, 1), nth(prefix, 2)
		if err := n.node.Do(func() error { return addAddr(name, netip.PrefixFrom(near, prefix.Bits())) }); err != nil {
			return err
		}
		if err := to.Do(func() error { return addAddr("eth0", netip.PrefixFrom(far, prefix.Bits())) }); err != nil {
			return err
		}
		if err := introduce(n.node, name, near, to, far); err != nil {
			return err
		}
	}
	return nil
}

// veth makes a pair of interfaces: name in one namespace, eth0 in the other. Both are up.
func (n *network) veth(from *namespace, name string, to *namespace) error {
	err := from.Do(func() error {
		link := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(to.FD())}
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("add %s: %w", name, err)
		}
		return linkUp(name)
	})
	if err != nil {
		return err
	}
	return to.Do(func() error { return linkUp("eth0") })
}

// introduce adds permanent neighbour entries for both ends of a link, so that no packet waits for address resolution or
// is lost to it.
func introduce(node *namespace, nodeLink string, nodeAddr netip.Addr, to *namespace, addr netip.Addr) error {
	nodeMAC, err := hardwareAddr(node, nodeLink)
	if err != nil {
		return err
	}
	mac, err := hardwareAddr(to, "eth0")
	if err != nil {
		return err
	}
	if err := node.Do(func() error { return addNeighbour(nodeLink, addr, mac) }); err != nil {
		return err
	}
	return to.Do(func() error { return addNeighbour("eth0", nodeAddr, nodeMAC) })
}

// wireFarPod connects the far pod to its node. Only routers on the way to it know the small MTU. Its own link has a
// larger one, so it does not announce the small one when a connection begins.
func (n *network) wireFarPod() error {
	const link = "kpl-far"
	if err := n.veth(n.otherNode, link, n.far); err != nil {
		return err
	}
	for _, f := range n.families {
		node, pod := placeNamed(otherNode).addr(f), placeNamed(farPod).addr(f)
		err := n.node.Do(func() error { return addRoute("kpl-other", hostPrefix(pod), node, netip.Addr{}) })
		if err != nil {
			return err
		}
		if err := n.otherNode.Do(func() error { return addNarrowRoute(link, hostPrefix(pod), farMTU) }); err != nil {
			return err
		}
		err = n.far.Do(func() error {
			if err := addAddr("eth0", hostPrefix(pod)); err != nil {
				return err
			}
			if err := addRoute("eth0", hostPrefix(node), netip.Addr{}, netip.Addr{}); err != nil {
				return err
			}
			return addRoute("eth0", anywhere(f), node, netip.Addr{})
		})
		if err != nil {
			return err
		}
		if err := introduce(n.otherNode, link, node, n.far, pod); err != nil {
			return err
		}
	}
	return nil
}

// route adds the routes beyond the links.
func (n *network) route() error {
	var errs []error
	for _, f := range n.families {
		p := planOf(f)
		nodeAddr := func(link netip.Prefix) netip.Addr { return nth(link, 1) }

		errs = append(errs, n.node.Do(func() error {
			if err := addRoute("kpl-client", p.clients, nth(p.toClient, 2), netip.Addr{}); err != nil {
				return err
			}
			return addRoute("kpl-outside", anywhere(f), nth(p.toOutside, 2), placeNamed(theNode).addr(f))
		}))
		for _, far := range []struct {
			node *namespace
			link string
			net  netip.Prefix
			pods []string
		}{
			{n.otherNode, "kpl-other", p.toOtherNode, []string{remotePod1, remotePod2}},
			{n.thirdNode, "kpl-third", p.toThirdNode, []string{remotePod3}},
		} {
			for _, name := range far.pods {
				pod := hostPrefix(placeNamed(name).addr(f))
				errs = append(errs,
					n.node.Do(func() error { return addRoute(far.link, pod, nth(far.net, 2), netip.Addr{}) }),
					far.node.Do(func() error { return addAddr("lo", pod) }))
			}
			errs = append(errs, far.node.Do(func() error {
				return addRoute("eth0", anywhere(f), nodeAddr(far.net), netip.Addr{})
			}))
		}
		errs = append(errs, n.client.Do(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			local := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(p.clients), Type: unix.RTN_LOCAL,
				Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
			if err := netlink.RouteAdd(local); err != nil {
				return fmt.Errorf("client range %v: %w", p.clients, err)
			}
			return addRoute("eth0", anywhere(f), nodeAddr(p.toClient), netip.Addr{})
		}))
		errs = append(errs, n.outside.Do(func() error {
			for _, back := range []netip.Prefix{p.allPods, p.clients, p.toOtherNode, p.toThirdNode, p.toClient} {
				if err := addRoute("eth0", back, nodeAddr(p.toOutside), netip.Addr{}); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}
