package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/dropin"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// move compares two proxies on a node.
type move struct {
	node      string
	ips       []netip.Addr // of the Node object
	given     []netip.Addr // other addresses of the host, from --host-addresses
	others    others       // other nodes
	objects   replay
	kubeProxy bool // the first proxy is kube-proxy
	flows     map[connection]int

	old, new   *proxy
	hostSet    map[netip.Addr]struct{} // addresses of the node's interfaces, for either proxy
	apiServers []netip.AddrPort
	// A pod of the node, and one of another node, in each family.
	localPod, remotePod model.PerFamily[netip.Addr]
}

// proxy is one of the two proxies.
type proxy struct {
	config   *v1alpha2.KubeProxyConfiguration
	families []model.Family
	snapshot *sink.Snapshot
	packets  oracle.Config
	refused  []refusal
	ignored  []difference // what is wrong with objects
	// choice selects the addresses that serve node ports.
	choice nodeaddr.Choice
	// nodePortIPs are the host's addresses that serve node ports, as far as they are known.
	nodePortIPs map[netip.Addr]struct{}
	// addresses are those of all services.
	addresses map[netip.Addr]struct{}
	// upstream: it is kube-proxy, not this library.
	upstream bool
}

// refusal is a part of a service port that this library does not serve.
type refusal struct {
	port    model.PortName
	owner   model.PortName // for frontend.AddressInUse
	reason  frontend.Reason
	message string
}

func (p *proxy) is(mode v1alpha2.ProxyMode) bool { return p.config.Mode == mode }

// stickyLimits returns how many endpoints and ports with session affinity the mode allows, nothing if any number.
func (p *proxy) stickyLimits() frontend.StickyLimits {
	switch p.config.Mode {
	case v1alpha2.ProxyModeIPTables:
		return iptables.StickyLimits()
	case v1alpha2.ProxyModeNFTables:
		return nft.StickyLimits()
	}
	return frontend.StickyLimits{}
}

// compare returns the differences on the node.
func (m *move) compare(ctx context.Context, before, after dropin.Config) ([]difference, error) {
	var err error
	if m.old, err = m.compute(ctx, before); err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	if m.new, err = m.compute(ctx, after); err != nil {
		return nil, fmt.Errorf("--to: %w", err)
	}
	m.old.upstream = m.kubeProxy
	m.hostSet = map[netip.Addr]struct{}{}
	for _, a := range slices.Concat(m.old.packets.HostAddresses, m.new.packets.HostAddresses) {
		m.hostSet[a] = struct{}{}
	}
	m.findAPIServers()
	m.findPods()
	list := slices.Concat(m.ofObjects(), m.withoutAddress(), m.ofRefusals(), m.ofNode())
	for _, name := range m.services() {
		s := m.both(name)
		list = append(list, m.ofService(s)...)
		before, after := m.old.ports(name), m.new.ports(name)
		from, kinds := m.senders(s), m.kinds(name)
		for _, p := range s.Ports {
			old, err := before.oracle(p)
			if err != nil {
				return nil, fmt.Errorf("--from: %w", err)
			}
			new, err := after.oracle(p)
			if err != nil {
				return nil, fmt.Errorf("--to: %w", err)
			}
			asked := map[alike][]difference{}
			for _, to := range m.destinations(s, p) {
				kind, many := m.alike(kinds, to)
				found, known := asked[kind]
				if !many || !known {
					found = m.ask(old, new, from.to(s, to.Addr()), s.PortName(p), to)
				}
				if many {
					asked[kind] = found
				}
				for _, d := range found {
					d.Destination = to.String()
					list = append(list, d)
				}
			}
		}
	}
	return list, nil
}

// services returns the names of the services of both proxies.
func (m *move) services() []model.ServiceName {
	all := map[model.ServiceName]bool{}
	for _, p := range []*proxy{m.old, m.new} {
		for entry := range p.snapshot.Services() {
			all[entry.Service.Name] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), model.ServiceName.Compare)
}

// both returns a service with the addresses and ports that it has for any of the two proxies.
func (m *move) both(name model.ServiceName) *model.Service {
	old, new := m.old.snapshot.Service(name), m.new.snapshot.Service(name)
	switch {
	case old == nil:
		return new.Service
	case new == nil:
		return old.Service
	}
	s := *new.Service
	s.ClusterIPs = distinct(s.ClusterIPs, old.Service.ClusterIPs)
	s.ExternalIPs = distinct(s.ExternalIPs, old.Service.ExternalIPs)
	s.LoadBalancerIPs = distinct(s.LoadBalancerIPs, old.Service.LoadBalancerIPs)
	type port struct {
		protocol     model.Protocol
		number, node uint16
	}
	has := map[port]struct{}{}
	for _, p := range s.Ports {
		has[port{p.Protocol, p.Port, p.NodePort}] = struct{}{}
	}
	s.Ports = slices.Clone(s.Ports)
	for _, p := range old.Service.Ports {
		if _, is := has[port{p.Protocol, p.Port, p.NodePort}]; !is {
			s.Ports = append(s.Ports, p)
		}
	}
	return &s
}

// compute computes a proxy's state for the node.
func (m *move) compute(ctx context.Context, c dropin.Config) (*proxy, error) {
	families, _, err := config.DetectNodeIPs(c.Configuration, m.ips, model.Families())
	if err != nil {
		return nil, err
	}
	state, cluster, _, err := config.StateOptions(c.Configuration, m.node, families)
	if err != nil {
		return nil, err
	}
	cluster.EndpointLimits = c.EndpointLimits
	choice, err := config.NodePortAddresses(c.Configuration)
	if err != nil {
		return nil, err
	}
	gates, err := config.Gates(c.Configuration)
	if err != nil {
		return nil, err
	}
	p := &proxy{config: c.Configuration, choice: choice, families: families.Families}
	var mu sync.Mutex // goroutines may log at the same time
	logger := funcr.NewJSON(func(line string) {
		mu.Lock()
		defer mu.Unlock()
		p.ignored = append(p.ignored, ofLog(line)...)
	}, funcr.Options{})
	table, err := frontend.New(frontend.Options{Families: families.Families, Limits: c.Limits,
		Sticky:            p.stickyLimits(),
		Apply:             func(context.Context, *frontend.Changes) error { return nil },
		NodePortAddresses: func(node *model.Node, f model.Family) []netip.Addr { return m.nodePorts(node, f, choice) },
		OnProblem: func(_ context.Context, problem frontend.Problem) {
			if problem.Reason != frontend.HealthCheckPortInUse { // with every proxy
				p.refused = append(p.refused, refusal{problem.Port, problem.Owner, problem.Reason, problem.Message})
			}
		}})
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(klog.NewContext(ctx, logger))
	defer cancel()
	full := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		p.snapshot = s
		cancel()
		return nil
	})
	feed := &kubeproxy.LocalFeed{Source: m.objects, State: state, Cluster: cluster, NodeCIDRTimeout: 1}
	err = kubeproxy.Run(running, kubeproxy.Options{Feed: feed, Sink: sink.Tee(table, full)})
	if err == nil && p.snapshot == nil {
		err = cmp.Or(context.Cause(ctx), errors.New("there is no state"))
	}
	if err != nil {
		return nil, err
	}
	p.nodePortIPs = map[netip.Addr]struct{}{}
	for _, f := range model.Families() {
		for _, a := range m.nodePorts(p.snapshot.Node(), f, choice) {
			p.nodePortIPs[a] = struct{}{}
		}
	}
	p.addresses = map[netip.Addr]struct{}{}
	for entry := range p.snapshot.Services() {
		s := entry.Service
		for _, list := range [][]netip.Addr{s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs} {
			for _, a := range list {
				p.addresses[a] = struct{}{}
			}
		}
	}
	p.packets = oracle.Config{HostAddresses: m.hosts(p.snapshot.Node()),
		NodePortCIDRs: choice.CIDRs, NodePortPrimary: choice.Primary,
		LocalhostNodePorts: p.is(v1alpha2.ProxyModeIPTables) && *p.config.IPTables.LocalhostNodePorts &&
			choice.Loopback(),
		LoopbackProxy: p.is(v1alpha2.ProxyModeNFTables) && gates.Enabled(config.KubeProxyNFTablesLocalhostNodePorts)}
	return p, nil
}

// hosts returns the addresses of the node's interfaces, as far as they are known.
func (m *move) hosts(node *model.Node) []netip.Addr { return distinct(node.IPs, m.ips, m.given) }

// distinct returns the addresses of all lists, each once.
func distinct(lists ...[]netip.Addr) (all []netip.Addr) {
	seen := map[netip.Addr]struct{}{}
	for _, a := range slices.Concat(lists...) {
		if _, again := seen[a]; !again {
			seen[a] = struct{}{}
			all = append(all, a)
		}
	}
	return all
}

// isHost reports whether an address is known to be the node's own.
func (m *move) isHost(a netip.Addr) bool {
	_, is := m.hostSet[a]
	return is || a.IsLoopback()
}

// nodePorts returns the node's addresses that serve node ports.
func (m *move) nodePorts(node *model.Node, f model.Family, choice nodeaddr.Choice) []netip.Addr {
	return choice.Of(m.hosts(node), node).Of(f)
}

// servicePorts are the ports of a proxy's service.
type servicePorts struct {
	of       *proxy
	entry    *sink.ServiceEntry // nil if there is none
	byNumber map[uint16][]int   // the indexes of its ports, by port number and by node port
}

func (p *proxy) ports(name model.ServiceName) servicePorts {
	all := servicePorts{of: p, entry: p.snapshot.Service(name), byNumber: map[uint16][]int{}}
	if all.entry == nil {
		return all
	}
	for i, port := range all.entry.Service.Ports {
		all.byNumber[port.Port] = append(all.byNumber[port.Port], i)
		if port.NodePort != 0 && port.NodePort != port.Port {
			all.byNumber[port.NodePort] = append(all.byNumber[port.NodePort], i)
		}
	}
	return all
}

// oracle returns an oracle for the ports that share a number with one, because an oracle searches all its services and
// ports for every answer.
func (all *servicePorts) oracle(like model.ServicePort) (*oracle.Oracle, error) {
	state := oracle.State{Node: all.of.snapshot.Node()}
	if all.entry != nil {
		s := *all.entry.Service
		s.Ports = nil
		at := slices.Clone(all.byNumber[like.Port])
		if like.NodePort != 0 {
			at = append(at, all.byNumber[like.NodePort]...)
		}
		slices.Sort(at)
		for _, i := range slices.Compact(at) {
			port := all.entry.Service.Ports[i]
			s.Ports = append(s.Ports, port)
			state.Endpoints = append(state.Endpoints, all.entry.PortEndpoints(port.Name, port.Protocol)...)
		}
		state.Services = []*model.Service{&s}
	}
	return oracle.New(state, all.of.packets)
}

// kinds says what the addresses of a service are for the two proxies: a bit for each kind.
type kinds map[netip.Addr]uint8

func (m *move) kinds(name model.ServiceName) kinds {
	all := kinds{}
	for i, p := range []*proxy{m.old, m.new} {
		s := p.service(model.PortName{Service: name})
		for j, list := range [][]netip.Addr{s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs} {
			for _, a := range list {
				all[a] |= 1 << (3*i + j)
			}
		}
	}
	return all
}

// alike is equal for addresses of a service at which nothing differs, so that one is asked about for all.
type alike struct {
	family    model.Family
	kinds     uint8
	allocated bool // in the ServiceCIDRs
}

// alike returns what an address has in common with others, or false if it is one of the few that are asked about each.
func (m *move) alike(of kinds, to netip.AddrPort) (alike, bool) {
	a := to.Addr()
	if m.isHost(a) || slices.Contains(m.apiServers, to) {
		return alike{}, false
	}
	return alike{model.FamilyOf(a), of[a], slices.ContainsFunc(m.new.snapshot.Node().ServiceCIDRs,
		func(c netip.Prefix) bool { return c.Contains(a) })}, true
}

// destinations returns the addresses of a service port on the node.
func (m *move) destinations(s *model.Service, p model.ServicePort) (all []netip.AddrPort) {
	for _, a := range slices.Concat(s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs) {
		all = append(all, netip.AddrPortFrom(a, p.Port))
	}
	if p.NodePort == 0 {
		return all
	}
	for _, a := range distinct(m.old.packets.HostAddresses, m.new.packets.HostAddresses,
		[]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}) {
		if s.ClusterIP(model.FamilyOf(a)).IsValid() {
			all = append(all, netip.AddrPortFrom(a, p.NodePort))
		}
	}
	return all
}

// ask returns the differences between two oracles for connections to a destination.
func (m *move) ask(
	old, new *oracle.Oracle, senders []sender, port model.PortName, to netip.AddrPort,
) (list []difference) {
	barred := m.old.bars(m, port.Protocol, to)
	differs := barred != m.new.bars(m, port.Protocol, to)
	for _, from := range senders {
		flow := oracle.Flow{From: from.kind, Source: from.addr, Destination: to, Protocol: port.Protocol}
		before, err := old.Expect(flow)
		after, err2 := new.Expect(flow)
		if err != nil || err2 != nil {
			continue // there is no such connection
		}
		rule := m.rule(port, to, before, after)
		if differs {
			other := oracle.Outcome{Flow: flow, Verdict: oracle.NotOurs}
			if rule = "S63"; barred {
				before = other
			} else {
				after = other
			}
		}
		e := difference{Object: port.String(), Destination: to.String(), Rule: rule, service: port.Service}
		e.Before, e.After = inWords(before, after), inWords(after, before)
		same := e.Before == e.After && slices.Equal(before.Endpoints, after.Endpoints)
		if text, rule := m.old.deviation(m, port, before, from); text != "" {
			e.Before, e.Rule, e.lasting = text, rule, true
			same = text == inWords(after, oracle.Outcome{Verdict: after.Verdict})
		}
		switch {
		case same:
			continue
		case e.Before == e.After:
			e.After += ", of other addresses"
		}
		if to.Addr().IsLoopback() && m.flows != nil {
			n := m.flows[connection{port.Protocol, to}]
			e.Connections = &n
		}
		i := slices.IndexFunc(list, func(o difference) bool {
			return o.Before == e.Before && o.After == e.After && o.Rule == e.Rule
		})
		if i < 0 {
			i, list = len(list), append(list, e)
		}
		list[i].Senders = append(list[i].Senders, from.name)
	}
	return list
}
