package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// backend implements sink.Sink. It programs an imaginary router: its "dataplane" is a table that maps a destination and
// a kind of source to an action. Where it prints, a real backend programs nftables, eBPF or a switch.
type backend struct {
	out io.Writer

	// The described state. The values are immutable, so it is safe to keep them.
	node      *model.Node
	services  map[model.ServiceName]*model.Service
	endpoints map[model.PortName]map[model.EndpointKey]*model.Endpoint

	// Services changed since the last successful Sync, so that the cost of a Sync depends only on what changed.
	changed map[model.ServiceName]bool

	// The applied rows of the routing table, by service. Sync compares with these, not with the last described state, so
	// that a failed Sync loses nothing.
	table map[model.ServiceName]map[row]action
}

func newBackend(out io.Writer) *backend {
	return &backend{
		out:       out,
		services:  map[model.ServiceName]*model.Service{},
		endpoints: map[model.PortName]map[model.EndpointKey]*model.Endpoint{},
		changed:   map[model.ServiceName]bool{},
		table:     map[model.ServiceName]map[row]action{},
	}
}

// SetNode is optional: it gives the sink the node that it runs on. Its addresses are needed for node ports.
func (b *backend) SetNode(n *model.Node) {
	b.node = n
	for name := range b.services { // node-port rows contain the node's addresses
		b.changed[name] = true
	}
}

// SetService creates or replaces a service. Set and Delete calls only record changes, so they cannot fail.
func (b *backend) SetService(s *model.Service) {
	b.services[s.Name] = s
	b.changed[s.Name] = true
}

// DeleteService is called after the service's endpoints have been deleted.
func (b *backend) DeleteService(name model.ServiceName) {
	delete(b.services, name)
	b.changed[name] = true
}

// SetEndpoint creates or replaces one endpoint of one port of a service.
func (b *backend) SetEndpoint(e *model.Endpoint) {
	if b.endpoints[e.Port] == nil {
		b.endpoints[e.Port] = map[model.EndpointKey]*model.Endpoint{}
	}
	b.endpoints[e.Port][e.Key()] = e
	b.changed[e.Port.Service] = true
}

// DeleteEndpoint may be called for an unknown endpoint; that is not an error.
func (b *backend) DeleteEndpoint(key model.EndpointKey) {
	delete(b.endpoints[key.Port], key)
	if len(b.endpoints[key.Port]) == 0 {
		delete(b.endpoints, key.Port)
	}
	b.changed[key.Port.Service] = true
}

// Sync applies the state, which is now consistent. It renders the changed services, compares with the current table,
// and applies the difference. After an error the caller tries again later.
func (b *backend) Sync(context.Context) error {
	for _, name := range slices.SortedFunc(maps.Keys(b.changed), model.ServiceName.Compare) {
		want, have := b.render(b.services[name]), b.table[name]
		for _, r := range sortedRows(have, want) {
			before, had := have[r]
			after, has := want[r]
			if had && (!has || before != after) {
				fmt.Fprintf(b.out, "  - %v %v\n", r, before)
			}
			if has && (!had || before != after) {
				fmt.Fprintf(b.out, "  + %v %v\n", r, after)
			}
		}
		if b.table[name] = want; len(want) == 0 {
			delete(b.table, name)
		}
	}
	clear(b.changed)
	return nil
}

// render returns the rows of one service. The model already contains all decisions: a Route names the set of endpoints
// to balance over, whether to masquerade, and what to do if the set is empty.
func (b *backend) render(s *model.Service) map[row]action {
	rows := map[row]action{}
	if s == nil { // deleted
		return rows
	}
	for _, p := range s.Ports {
		for _, f := range model.Families() {
			routes := *p.Routes.At(f)
			add := func(ip netip.Addr, port uint16, from string, r model.Route) {
				rows[row{fmt.Sprintf("%v/%v", netip.AddrPortFrom(ip, port), p.Protocol), from}] = b.action(s, p, f, r)
			}
			if ip := s.ClusterIP(f); ip.IsValid() {
				add(ip, p.Port, "anywhere", routes.ClusterIP)
			}
			external := func(ip netip.Addr, port uint16) {
				if routes.External == routes.ExternalFromPod && routes.External == routes.ExternalFromNode {
					add(ip, port, "anywhere", routes.External)
					return
				}
				add(ip, port, "pod of the node", routes.ExternalFromPod)
				add(ip, port, "the node", routes.ExternalFromNode)
				add(ip, port, "elsewhere", routes.External)
			}
			for _, ip := range slices.Concat(s.ExternalIPs, s.LoadBalancerIPs) {
				if model.FamilyOf(ip) == f {
					external(ip, p.Port)
				}
			}
			for _, ip := range b.node.IPs {
				if model.FamilyOf(ip) == f && p.NodePort != 0 && s.ClusterIP(f).IsValid() {
					external(ip, p.NodePort)
				}
			}
		}
	}
	return rows
}

// action returns the action for one kind of traffic.
func (b *backend) action(s *model.Service, p model.ServicePort, f model.Family, r model.Route) action {
	var targets []string
	for _, e := range b.endpoints[s.PortName(p)] {
		if e.Family() == f && e.Sets.Has(r.Endpoints) {
			targets = append(targets, e.Target.String())
		}
	}
	slices.Sort(targets)
	a := action{service: s.PortName(p).String(), do: strings.ToLower(r.Empty.String())}
	if len(targets) > 0 {
		a.do, a.masquerade = strings.Join(targets, " "), r.Masquerade.String()
	}
	return a
}
