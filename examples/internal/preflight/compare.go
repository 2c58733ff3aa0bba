package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// difference is something that is treated differently after the move.
type difference struct {
	// Object is a service port, or another object.
	Object string `json:"object"`
	// Destination and Senders say which connections differ, if it is about connections.
	Destination string   `json:"destination,omitempty"`
	Senders     []string `json:"senders,omitempty"`
	// Before and After say what happens to them.
	Before string `json:"before"`
	After  string `json:"after"`
	// Rule is the rule of docs/semantics.md that makes the difference.
	Rule string `json:"rule,omitempty"`
	// Connections is how many connections to the destination the node is tracking, if it was asked.
	Connections *int `json:"connections,omitempty"`
	// Nodes are those that the difference is on.
	Nodes []string `json:"nodes"`
}

// String returns the difference on one line.
func (d difference) String() string {
	where := d.Object
	if d.Destination != "" {
		where += " at " + d.Destination + ", from " + strings.Join(d.Senders, " and ")
	}
	text := fmt.Sprintf("%s: %s; then %s", where, d.Before, d.After)
	if d.Rule != "" {
		text += " (" + d.Rule + ")"
	}
	if d.Connections != nil {
		text += fmt.Sprintf("; the node is tracking %d connections", *d.Connections)
		if *d.Connections == 1 {
			text = strings.TrimSuffix(text, "s")
		}
	}
	return text
}

// where names the nodes that the difference is on, for people.
func (d difference) where() string {
	if n := len(d.Nodes); n > 3 {
		return fmt.Sprintf("%s and %d more nodes", strings.Join(d.Nodes[:2], ", "), n-2)
	}
	return strings.Join(d.Nodes, ", ")
}

// key has what two differences have in common that are the same one on two nodes. The addresses of a node differ.
func (d difference) key() string {
	return strings.Join(append([]string{d.Object, d.Destination, d.Before, d.After, d.Rule}, d.Senders...), "\x00")
}

// merge adds the differences of a node.
func merge(all, more []difference, node string) []difference {
	index := make(map[string]int, len(all))
	for i, d := range all {
		index[d.key()] = i
	}
	for _, d := range more {
		i, ok := index[d.key()]
		if !ok {
			i, all = len(all), append(all, d)
		}
		all[i].Nodes = append(all[i].Nodes, node)
	}
	slices.SortStableFunc(all, func(a, b difference) int { return cmp.Compare(a.Object, b.Object) })
	return all
}

// move compares two proxies on a node.
type move struct {
	node      string
	addresses []netip.Addr // of the node; nil: those of its Node object
	objects   replay
	kubeProxy bool // the first one is kube-proxy
	flows     map[connection]int
}

// proxy is one of the proxies that are compared.
type proxy struct {
	config   *v1alpha2.KubeProxyConfiguration
	snapshot *sink.Snapshot
	packets  oracle.Config
	refused  []difference // objects that are not served as they are
	// choice is which addresses serve node ports.
	choice nodeaddr.Choice
	local  model.PerFamily[netip.Addr] // a pod of the node
	remote model.PerFamily[netip.Addr] // a pod of another node
}

func (m *move) compare(ctx context.Context, before, after *v1alpha2.KubeProxyConfiguration) ([]difference, error) {
	old, err := m.compute(ctx, before)
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	new, err := m.compute(ctx, after)
	if err != nil {
		return nil, fmt.Errorf("--to: %w", err)
	}
	d := &departures{move: m, old: old, new: new}
	list := d.ofObjects()
	for entry := range new.snapshot.Services() {
		list = append(list, d.ofService(entry.Service)...)
		before, err := old.oracle(old.snapshot.Service(entry.Service.Name))
		if err != nil {
			return nil, fmt.Errorf("--from: %w", err)
		}
		after, err := new.oracle(entry)
		if err != nil {
			return nil, fmt.Errorf("--to: %w", err)
		}
		for _, p := range entry.Service.Ports {
			for _, to := range destinations(new.snapshot.Node(), m.addresses, entry.Service, p) {
				list = append(list, d.ask(before, after, new.senders(to), entry.Service.PortName(p), to)...)
			}
		}
	}
	return list, nil
}

// compute works out what a proxy does on the node.
func (m *move) compute(ctx context.Context, c *v1alpha2.KubeProxyConfiguration) (*proxy, error) {
	state, cluster, _, err := config.StateOptions(c, m.node, config.NodeIPs{Families: model.Families()})
	if err != nil {
		return nil, err
	}
	choice, err := config.NodePortAddresses(c)
	if err != nil {
		return nil, err
	}
	gates, err := config.Gates(c)
	if err != nil {
		return nil, err
	}
	p := &proxy{config: c, choice: choice}
	logger := funcr.NewJSON(func(line string) { p.refused = append(p.refused, ofLog(line)...) }, funcr.Options{})
	table, err := frontend.New(frontend.Options{Families: model.Families(),
		Apply:             func(context.Context, *frontend.Changes) error { return nil },
		NodePortAddresses: func(node *model.Node, f model.Family) []netip.Addr { return m.nodePorts(node, f, choice) },
		OnProblem: func(_ context.Context, problem frontend.Problem) {
			p.refused = append(p.refused, ofProblem(problem))
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
	p.findPods()
	p.packets = oracle.Config{HostAddresses: m.addresses,
		NodePortCIDRs: choice.CIDRs, NodePortPrimary: choice.Primary,
		LocalhostNodePorts: c.Mode == v1alpha2.ProxyModeIPTables && *c.IPTables.LocalhostNodePorts && choice.Loopback(),
		LoopbackProxy: c.Mode == v1alpha2.ProxyModeNFTables &&
			gates.Enabled(config.KubeProxyNFTablesLocalhostNodePorts)}
	return p, nil
}

// nodePorts returns the addresses of the node that serve node ports.
func (m *move) nodePorts(node *model.Node, f model.Family, choice nodeaddr.Choice) (served []netip.Addr) {
	hosts := m.addresses
	if hosts == nil {
		hosts = node.IPs
	}
	for _, a := range hosts {
		if model.FamilyOf(a) == f && (choice.Primary && a == node.IP(f) ||
			slices.ContainsFunc(choice.CIDRs, func(c netip.Prefix) bool { return c.Contains(a) })) {
			served = append(served, a)
		}
	}
	return served
}

// oracle returns the oracle for one service, because one for all looks at each of them for each answer.
func (p *proxy) oracle(entry *sink.ServiceEntry) (*oracle.Oracle, error) {
	state := oracle.State{Node: p.snapshot.Node()}
	if entry != nil {
		state.Services, state.Endpoints = []*model.Service{entry.Service}, entry.Endpoints
	}
	return oracle.New(state, p.packets)
}

// maxAddresses is how many addresses of a service port are asked about. What is true of a thousand of them is true of
// the rest.
const maxAddresses = 1000

// destinations returns where a service port can be reached on the node.
func destinations(node *model.Node, hosts []netip.Addr, s *model.Service, p model.ServicePort) (all []netip.AddrPort) {
	vips := slices.Concat(s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs)
	for _, a := range vips[:min(len(vips), maxAddresses)] {
		all = append(all, netip.AddrPortFrom(a, p.Port))
	}
	if p.NodePort == 0 {
		return all
	}
	if hosts == nil {
		hosts = node.IPs
	}
	loopback := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	for _, a := range slices.Concat(hosts, loopback) {
		if s.ClusterIP(model.FamilyOf(a)).IsValid() {
			all = append(all, netip.AddrPortFrom(a, p.NodePort))
		}
	}
	return all
}

// sender is where a connection comes from.
type sender struct {
	name string
	kind oracle.SourceKind
	addr netip.Addr
}

// findPods finds a pod of the node and one of another node, in each family.
func (p *proxy) findPods() {
	node := p.snapshot.Node()
	for _, cidr := range node.PodCIDRs {
		*p.local.At(model.FamilyOf(cidr.Addr())) = cidr.Addr().Next().Next()
	}
	for entry := range p.snapshot.Services() {
		for _, e := range entry.Endpoints {
			switch a := e.Target.Addr(); {
			case slices.Contains(node.IPs, a):
			case e.Local:
				*p.local.At(model.FamilyOf(a)) = a
			default:
				*p.remote.At(model.FamilyOf(a)) = a
			}
		}
	}
}

// senders returns one sender of each kind that can reach a destination, in its family.
func (p *proxy) senders(to netip.AddrPort) (all []sender) {
	node, f := p.snapshot.Node(), model.FamilyOf(to.Addr())
	if to.Addr().IsLoopback() {
		return []sender{{"the node", oracle.Node, to.Addr()}}
	}
	if a := node.IP(f); a.IsValid() {
		all = append(all, sender{"the node", oracle.Node, a})
	}
	local, remote := *p.local.At(f), *p.remote.At(f)
	if local.IsValid() {
		all = append(all, sender{"a pod of this node", oracle.LocalPod, local})
	}
	if remote.IsValid() {
		all = append(all, sender{"a pod of another node", oracle.RemotePod, remote})
	}
	outside := netip.AddrFrom4([4]byte{198, 51, 100, 77}) // of the ranges for documentation
	if f == model.IPv6 {
		outside = netip.MustParseAddr("2001:db8::77")
	}
	return append(all, sender{"outside", oracle.External, outside})
}

// ask returns the differences between two oracles in what happens to connections to a destination.
func (d *departures) ask(old, new *oracle.Oracle, from []sender, port model.PortName, to netip.AddrPort) (list []difference) {
	for _, s := range from {
		flow := oracle.Flow{From: s.kind, Source: s.addr, Destination: to, Protocol: port.Protocol}
		before, err := old.Expect(flow)
		after, err2 := new.Expect(flow)
		if err != nil || err2 != nil {
			continue // no such connection exists
		}
		e := difference{Object: port.String(), Destination: to.String(), Before: inWords(before), After: inWords(after),
			Rule: cmp.Or(newRule(after, before), newRule(before, after))}
		if before.Verdict == oracle.NotOurs || after.Verdict == oracle.NotOurs { // which node ports alone can be
			if e.Rule = "S35"; to.Addr().IsLoopback() {
				e.Rule = "S36"
			}
		}
		d.correct(&e, before, to, port.Protocol)
		if e.Before == e.After && slices.Equal(before.Endpoints, after.Endpoints) {
			continue
		}
		if to.Addr().IsLoopback() && d.flows != nil {
			n := d.flows[connection{port.Protocol, to}]
			e.Connections = &n
		}
		i := slices.IndexFunc(list, func(o difference) bool {
			return o.Before == e.Before && o.After == e.After && o.Rule == e.Rule
		})
		if i < 0 {
			i, list = len(list), append(list, e)
		}
		list[i].Senders = append(list[i].Senders, s.name)
	}
	return list
}

// inWords says what happens to a connection.
func inWords(o oracle.Outcome) string {
	switch o.Verdict {
	case oracle.Deliver:
		masqueraded := 0
		for _, e := range o.Endpoints {
			if e.SourceNAT {
				masqueraded++
			}
		}
		source := "the client's address"
		if masqueraded == len(o.Endpoints) {
			source = "an address of the node"
		} else if masqueraded > 0 {
			source = fmt.Sprintf("an address of the node for %d of them", masqueraded)
		}
		return fmt.Sprintf("delivered to %d endpoints, with %s as the source", len(o.Endpoints), source)
	case oracle.Reject:
		return "rejected"
	case oracle.Drop:
		return "dropped"
	}
	return "not served"
}

// newRule returns the first rule that leads to an outcome and not to the other one.
func newRule(o, other oracle.Outcome) string {
	for _, r := range o.Reasons {
		if r.Rule != "" && !slices.Contains(other.Reasons, r) {
			return r.Rule
		}
	}
	return ""
}
