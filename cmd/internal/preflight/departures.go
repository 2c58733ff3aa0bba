package preflight

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/healthcheck"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Differences that are not in the answers of the oracle: kube-proxy's departures (docs/departures.md), and what a mode
// does beyond a service's own addresses and ports.

// ofObjects returns differences in the treatment of objects.
func (m *move) ofObjects() []difference {
	if !m.old.upstream {
		return nil
	}
	unused := func(d difference) bool { // neither proxy serves the Service of a slice
		return strings.HasPrefix(d.Object, "EndpointSlice ") && m.old.snapshot.Service(d.service) == nil &&
			m.new.snapshot.Service(d.service) == nil
	}
	return append(slices.DeleteFunc(slices.Clone(m.new.ignored), unused), m.ofSlices()...)
}

// withoutAddress returns the Services without a cluster IP. They are from a manifest: no proxy serves them, but in a
// cluster they have one, and node ports.
func (m *move) withoutAddress() (list []difference) {
	for _, c := range m.objects {
		s, ok := c.Object.(*corev1.Service)
		if !ok || c.Deleted || s.Spec.ClusterIP != "" || s.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		if _, others := s.Labels["service.kubernetes.io/service-proxy-name"]; others {
			continue
		}
		list = append(list, difference{Object: "connections to Service " + s.Namespace + "/" + s.Name,
			NotCompared: "it has no cluster IP, which an API server gives it: is the file a dump of the cluster?"})
	}
	return list
}

// ofNode returns the differences that do not depend on a service.
func (m *move) ofNode() (list []difference) {
	add := func(object, before, after, rule string) {
		if before != after {
			list = append(list, difference{Object: object, Before: before, After: after, Rule: rule})
		}
	}
	const left = "left to the node's routes"
	ports := func(p *proxy) string { return either(p.guardsClusterIPs(), "refused", left) }
	cidrs := func(p *proxy) string { return either(p.guardsServiceCIDRs(), "dropped", left) }
	if m.old.snapshot.NumServices()+m.new.snapshot.NumServices() > 0 {
		add("ports of cluster IPs that no service has", ports(m.old), ports(m.new), "S33")
	}
	const unallocated = "addresses of the ServiceCIDRs that no service has"
	if len(m.new.snapshot.Node().ServiceCIDRs) > 0 {
		add(unallocated, cidrs(m.old), cidrs(m.new), "S33")
	} else if m.old.guardsServiceCIDRs() != m.new.guardsServiceCIDRs() {
		list = append(list, difference{Object: unallocated, NotCompared: "there are no ServiceCIDRs, which every cluster " +
			"has: is the dump complete, and may they be listed?"})
	}
	add("how endpoints are chosen", m.old.scheduler(), m.new.scheduler(), "S57")
	for _, f := range model.Families() {
		before, after := m.old.elsewhere(f), m.new.elsewhere(f)
		if n := m.countNodePorts(f); before != after && n > 0 && !m.knowsOthers(f) {
			add(fmt.Sprintf("node ports and health checks of %s at %v addresses of the node that its Node object does not "+
				"list", count(n, "Service"), f),
				before+m.old.exceptVIPs(f), after+m.new.exceptVIPs(f), "S35")
		}
	}
	return list
}

// knowsOthers reports whether --host-addresses names addresses of a family that the host has besides those of its Node
// object: each of them is compared.
func (m *move) knowsOthers(f model.Family) bool {
	return slices.ContainsFunc(m.given, func(a netip.Addr) bool {
		return model.FamilyOf(a) == f && !slices.Contains(m.ips, a)
	})
}

// either returns one of two texts.
func either(yes bool, is, otherwise string) string {
	if yes {
		return is
	}
	return otherwise
}

// scheduler says how an endpoint is chosen. Round robin and random choice count as the same.
func (p *proxy) scheduler() string {
	if s := p.config.IPVS.Scheduler; p.is(v1alpha2.ProxyModeIPVS) && s != "" && s != "rr" {
		return "by scheduler " + s
	}
	return "evenly"
}

// countNodePorts returns how many services have node ports or health checks in a family.
func (m *move) countNodePorts(f model.Family) (n int) {
	for _, name := range m.services() {
		s := m.both(name)
		if s.ClusterIP(f).IsValid() && (s.HealthCheck != nil ||
			slices.ContainsFunc(s.Ports, func(p model.ServicePort) bool { return p.NodePort != 0 })) {
			n++
		}
	}
	return n
}

// exceptVIPs adds to "not served" where health checks still answer (S65).
func (p *proxy) exceptVIPs(f model.Family) string {
	if p.elsewhere(f) == served {
		return ""
	}
	most := 0
	for entry := range p.snapshot.Services() {
		s := entry.Service
		if s.HealthCheck == nil {
			continue
		}
		vips, more := healthcheck.VIPs(s, func(a netip.Addr) bool { return model.FamilyOf(a) == f && p.answersAtVIP(a) })
		if more {
			return fmt.Sprintf(", but for health checks at %d of a Service's own VIPs (S65)", healthcheck.MaxVIPs)
		}
		most = max(most, len(vips))
	}
	if most > 0 {
		return ", but for health checks at a Service's own VIPs (S65)"
	}
	return ""
}

const served = "served"

// elsewhere says which of the host's unknown addresses serve node ports.
func (p *proxy) elsewhere(f model.Family) string {
	if !slices.Contains(p.families, f) {
		return notServed
	}
	if p.choice.All(f) {
		return served
	}
	var cidrs []string
	for _, c := range p.choice.CIDRs {
		if model.FamilyOf(c.Addr()) == f && !c.Addr().IsLoopback() {
			cidrs = append(cidrs, c.String())
		}
	}
	if len(cidrs) == 0 {
		return notServed
	}
	return "served in " + strings.Join(cidrs, ", ")
}

// hasCIDR reports whether address ranges of a family serve node ports.
func (p *proxy) hasCIDR(f model.Family) bool {
	return slices.ContainsFunc(p.choice.CIDRs, func(c netip.Prefix) bool { return model.FamilyOf(c.Addr()) == f })
}

// ofService returns the differences that affect a service whatever the connection.
func (m *move) ofService(s *model.Service) (list []difference) {
	add := func(before, after, rule string) {
		list = append(list, difference{Object: s.Name.String(), Before: before, After: after, Rule: rule, service: s.Name})
	}
	list = append(m.ofOtherPorts(s), m.ofHealthCheck(s)...)
	for _, f := range model.Families() {
		if m.old.upstream && m.old.choice.Primary && !m.new.snapshot.Node().IP(f).IsValid() && !m.old.hasCIDR(f) &&
			s.ClusterIP(f).IsValid() && slices.ContainsFunc(s.Ports, func(p model.ServicePort) bool { return p.NodePort != 0 }) {
			add(fmt.Sprintf("its node ports are on all %v addresses, because the node has no primary one", f),
				"they are on none", "S35")
			list[len(list)-1].lasting = true
		}
	}
	hashes := func(p *proxy) bool { return p.is(v1alpha2.ProxyModeIPVS) && !p.upstream }
	if s.SessionAffinityTimeout != 0 && hasLocalExternal(s) && hashes(m.old) != hashes(m.new) {
		texts := [2]string{fmt.Sprintf("the node and its pods stay with an endpoint of its external addresses for %v",
			s.SessionAffinityTimeout), "they stay with what a hash of their address says, without a timeout"}
		if hashes(m.old) {
			texts[0], texts[1] = texts[1], texts[0]
		}
		add(texts[0], texts[1], "S32")
	}
	return list
}

// ofOtherPorts returns the differences at ports of external and load-balancer IPs that no service has.
func (m *move) ofOtherPorts(s *model.Service) (list []difference) {
	for _, a := range externalAddresses(s) {
		rule := "S33"
		if m.isOthers(a) {
			rule = "S63"
		}
		text := func(p *proxy) string {
			switch {
			case !p.refusesOtherPorts(m, a):
				return notServed
			case m.isOthers(a):
				return "refused: this node does not reach the machine that has the address"
			}
			return "refused"
		}
		if before, after := text(m.old), text(m.new); before != after {
			list = append(list, difference{Object: s.Name.String(), Destination: "other ports of " + a.String(),
				Before: before, After: after, Rule: rule, service: s.Name})
		}
	}
	return list
}

// externalAddresses returns the external and load-balancer IPs of a service.
func externalAddresses(s *model.Service) []netip.Addr {
	all := slices.Concat(s.ExternalIPs, s.LoadBalancerIPs)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// ofHealthCheck returns the differences of a service's health check.
func (m *move) ofHealthCheck(s *model.Service) (list []difference) {
	if s.HealthCheck == nil {
		return nil
	}
	add := func(before, after string) {
		list = append(list, difference{Object: s.Name.String(), Before: before, After: after, Rule: "S38", service: s.Name})
	}
	node := m.new.snapshot.Node()
	if m.old.upstream && node.IP(model.IPv4).IsValid() && node.IP(model.IPv6).IsValid() &&
		s.ClusterIP(model.IPv4).IsValid() != s.ClusterIP(model.IPv6).IsValid() {
		add(fmt.Sprintf("its health check answers in the service's family alone, on port %d", s.HealthCheck.NodePort),
			"it answers in both families")
		list[0].lasting = true
	}
	text := func(answers bool) string {
		return either(answers, "its health check answers", "its health check does not answer")
	}
	vips := map[netip.Addr]struct{}{}
	for _, a := range externalAddresses(s) {
		vips[a] = struct{}{}
	}
	checkedBefore, checkedAfter := m.old.checkedVIPs(m, s.Name), m.new.checkedVIPs(m, s.Name)
	for _, a := range distinct(m.hosts(node), s.ClusterIPs, externalAddresses(s)) {
		_, isVIP := vips[a]
		to := netip.AddrPortFrom(a, s.HealthCheck.NodePort).String()
		before := m.old.answersHealthChecks(m, s, a, checkedBefore)
		after := m.new.answersHealthChecks(m, s, a, checkedAfter)
		if before != after && (!m.old.upstream || s.ClusterIP(model.FamilyOf(a)).IsValid()) {
			rule := "S38"
			if isVIP && m.new.mayCheckAt(m, a) {
				rule = "S65"
			}
			// Which addresses the host has, and that cluster IPs are left out, is the mode's choice.
			lasting := slices.Contains(s.ClusterIPs, a) || m.old.adds(m, a) != m.new.adds(m, a)
			list = append(list, difference{Object: s.Name.String(), Destination: to, Before: text(before),
				After: text(after), Rule: rule, service: s.Name, lasting: lasting})
		}
	}
	return list
}

// hasLocalExternal reports whether only local endpoints serve a service's external addresses.
func hasLocalExternal(s *model.Service) bool {
	return slices.ContainsFunc(s.Ports, func(p model.ServicePort) bool {
		return slices.ContainsFunc(model.Families(), func(f model.Family) bool {
			return p.Routes.At(f).External.Endpoints == model.LocalSet
		})
	}) && (len(s.ExternalIPs) > 0 || len(s.LoadBalancerIPs) > 0)
}

// ofLog returns the difference that a log line of package localstate reports, if any.
func ofLog(line string) []difference {
	var said struct {
		Msg, Field, Reason                        string
		Service, EndpointSlice, Node, ServiceCIDR json.RawMessage
	}
	if json.Unmarshal([]byte(line), &said) != nil {
		return nil
	}
	kind, ok := strings.CutPrefix(said.Msg, "Ignoring an invalid value of ")
	if !ok {
		return nil
	}
	kind = kind[strings.LastIndex(kind, " ")+1:]
	var name struct{ Namespace, Name string }
	_ = json.Unmarshal(map[string]json.RawMessage{"Service": said.Service, "EndpointSlice": said.EndpointSlice,
		"Node": said.Node, "ServiceCIDR": said.ServiceCIDR}[kind], &name)
	service := model.ServiceName{Namespace: name.Namespace}
	switch kind {
	case "Service":
		service.Name = name.Name
	case "EndpointSlice":
		_ = json.Unmarshal(said.Service, &service.Name)
	}
	return []difference{{Object: kind + " " + strings.TrimPrefix(name.Namespace+"/"+name.Name, "/"), service: service,
		Before: "may be used as it is", After: "ignored: " + said.Field + ": " + said.Reason, Rule: "S3 to S5"}}
}
