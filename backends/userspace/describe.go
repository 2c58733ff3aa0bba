package userspace

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// describeService is DescribeService in one family.
func (f *family) describeService(_ model.ServiceName, _ *frontend.Changes, ports []*frontend.PortChange) string {
	f.backend.mu.Lock()
	defer f.backend.mu.Unlock()
	var text strings.Builder
	for _, pc := range ports {
		if p := f.ports[pc.After.Name]; p != nil {
			fmt.Fprintf(&text, "%v, %v\n", pc.After.Name, f.family)
			f.describe(&text, p)
		}
	}
	return text.String()
}

// describe writes what a port has.
func (f *family) describe(text *strings.Builder, p *port) {
	line := func(format string, args ...any) { fmt.Fprintf(text, "    "+format+"\n", args...) }
	var udp []*udpListener
	for _, k := range slices.SortedFunc(maps.Keys(p.keys), frontend.Key.Compare) {
		for at := range f.listenerKeys(k) {
			switch l := f.listeners[at]; {
			case l != nil:
				line("%v: listens on %v", at, l.addr())
				if u, ok := l.(*udpListener); ok {
					udp = append(udp, u)
				}
			case p.failed[k] != nil:
				line("%v: not served: %v", at, p.failed[k])
			case p.refuses(p.keys[k].Kind):
				line("%v: refuses connections, no endpoint", at)
			default:
				line("%v: not served", at)
			}
		}
	}
	p.mu.Lock() // for a moment: new connections wait for it
	sets, timeout, contacts := p.sets, p.spec.AffinityTimeout, len(p.contacts.byClient)
	for i := range sets {
		sets[i] = slices.Clone(sets[i])
	}
	p.mu.Unlock()
	for i, set := range []string{"cluster set", "local set", "draining"} {
		if endpoints := sets[i]; len(endpoints) > 0 {
			slices.SortFunc(endpoints, netip.AddrPort.Compare)
			list := fmt.Sprint(endpoints)
			line("%s: %s", set, list[1:len(list)-1])
		}
	}
	if timeout > 0 {
		line("clients stay with their endpoints for %v: %d are remembered", timeout, contacts)
	}
	if n := p.connections.Load(); n > 0 {
		line("connections: %d", n)
	}
	for _, l := range udp {
		for _, flow := range l.describeFlows() {
			line("flow %s", flow)
		}
	}
}

// describeFlows returns a text for each flow, sorted.
func (l *udpListener) describeFlows() []string {
	l.mu.Lock() // for a moment: datagrams wait for it
	flows := slices.Collect(maps.Values(l.flows))
	l.mu.Unlock()
	var list []string
	for _, fl := range flows {
		list = append(list, fmt.Sprintf("%v -> %v -> %v", fl.client, l.addr(), fl.endpoint))
	}
	slices.Sort(list)
	return list
}
