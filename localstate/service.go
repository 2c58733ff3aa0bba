package localstate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

const (
	labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

	// annotationLastApplied holds a copy of the whole object for kubectl: nothing that a backend could extend.
	annotationLastApplied = corev1.LastAppliedConfigAnnotation

	defaultAffinityTimeout = time.Duration(corev1.DefaultClientIPServiceAffinitySeconds) * time.Second
)

// serviceIntake is what is remembered of a Service object.
type serviceIntake struct {
	// model is the service in its final form but for what depends on other objects: the ports' routes, the count of
	// local endpoints, and the VIPs as their own allowed sources.
	model *model.Service
	// ranges are the source ranges of the object (S8), without VIPs.
	ranges []netip.Prefix
	// external tells, by family, whether there are external addresses beside node ports (S10). They may be hidden from
	// the model by Options.NoExternalIPs.
	externalIPv4, externalIPv6 bool
}

func (in *serviceIntake) external(f model.Family) bool {
	if f == model.IPv4 {
		return in.externalIPv4
	}
	return in.externalIPv6
}

// skipReason says why a Service gets no service proxy, or "" if it gets one (S1, S2).
func (o Options) skipReason(obj *corev1.Service) string {
	switch name, labelled := obj.Labels[labelServiceProxyName]; {
	case labelled && o.ServiceProxyName == "":
		return fmt.Sprintf("label %s=%q: it belongs to another proxy", labelServiceProxyName, name)
	case o.ServiceProxyName != "" && name != o.ServiceProxyName:
		return fmt.Sprintf("label %s is not %q", labelServiceProxyName, o.ServiceProxyName)
	case obj.Spec.Type == corev1.ServiceTypeExternalName:
		return "type ExternalName"
	case obj.Spec.ClusterIP == corev1.ClusterIPNone:
		return "headless: clusterIP is None"
	case obj.Spec.ClusterIP == "":
		return "no clusterIP"
	}
	return ""
}

// clusterIPText is S3.
func clusterIPText(spec *corev1.ServiceSpec, f model.Family) string {
	if len(spec.IPFamilies) == 0 {
		if addr, err := parseAddr(spec.ClusterIP); err == nil && model.FamilyOf(addr) != f {
			return ""
		}
		return spec.ClusterIP
	}
	for i, family := range spec.IPFamilies {
		if string(family) == f.String() && i < len(spec.ClusterIPs) {
			return spec.ClusterIPs[i]
		}
	}
	return ""
}

// intakeService reads a Service object. It returns nil and the reason if the object gets no service proxy.
func intakeService(log klog.Logger, o Options, families []model.Family, obj *corev1.Service) (*serviceIntake, string) {
	if reason := o.skipReason(obj); reason != "" {
		return nil, reason
	}
	spec := &obj.Spec
	bad := func(field string, err error) {
		log.Info("Ignoring an invalid value of a Service", "service", klog.KObj(obj), "field", field, "reason", err.Error())
	}

	svc := &model.Service{
		Name:        model.ServiceName{Namespace: obj.Namespace, Name: obj.Name},
		UID:         string(obj.UID),
		Created:     obj.CreationTimestamp.UTC().Truncate(time.Second),
		Labels:      cloneMap(obj.Labels),
		Annotations: cloneMap(obj.Annotations),
	}
	delete(svc.Annotations, annotationLastApplied)
	in := &serviceIntake{model: svc}

	for _, f := range families {
		text := clusterIPText(spec, f)
		if text == "" || text == corev1.ClusterIPNone {
			continue
		}
		addr, err := parseAddr(text)
		if err == nil && model.FamilyOf(addr) != f {
			err = fmt.Errorf("%q is not of family %v", text, f)
		}
		if err != nil {
			bad("clusterIPs", err)
			continue
		}
		svc.ClusterIPs = append(svc.ClusterIPs, addr)
	}
	if len(svc.ClusterIPs) == 0 {
		return nil, "no clusterIP of a family that this node serves"
	}
	if len(svc.ClusterIPs) == 2 && len(spec.IPFamilies) > 0 && spec.IPFamilies[0] == corev1.IPv6Protocol {
		slices.Reverse(svc.ClusterIPs) // primary family first
	}

	intakeExternal(in, o, obj, bad)
	intakePolicies(in, obj, bad)
	intakePorts(in, obj, bad)
	return in, ""
}

// intakeExternal reads the external IPs (S6), the load-balancer VIPs (S7) and their source ranges (S8).
func intakeExternal(in *serviceIntake, o Options, obj *corev1.Service, bad func(string, error)) {
	svc := in.model
	add := func(field, text string, list *[]netip.Addr, program bool) {
		addr, err := parseAddr(text)
		if err != nil {
			bad(field, err)
			return
		}
		f := model.FamilyOf(addr)
		if !svc.ClusterIP(f).IsValid() {
			return
		}
		if f == model.IPv4 {
			in.externalIPv4 = true
		} else {
			in.externalIPv6 = true
		}
		if program {
			*list = append(*list, addr)
		}
	}
	for _, text := range obj.Spec.ExternalIPs {
		add("externalIPs", text, &svc.ExternalIPs, !o.NoExternalIPs)
	}
	for _, ingress := range obj.Status.LoadBalancer.Ingress {
		if ingress.IP != "" && (ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP) {
			add("status.loadBalancer.ingress", ingress.IP, &svc.LoadBalancerIPs, true)
		}
	}
	svc.ExternalIPs = sortedSet(svc.ExternalIPs, netip.Addr.Compare)
	svc.LoadBalancerIPs = sortedSet(svc.LoadBalancerIPs, netip.Addr.Compare)

	var open [2]bool // by family: a /0 allows everybody
	for _, text := range obj.Spec.LoadBalancerSourceRanges {
		prefix, err := parsePrefix(text)
		if err != nil {
			bad("loadBalancerSourceRanges", err)
			continue
		}
		if prefix.Bits() == 0 {
			open[familyIndex(model.FamilyOf(prefix.Addr()))] = true
		}
		in.ranges = append(in.ranges, prefix)
	}
	in.ranges = slices.DeleteFunc(in.ranges, func(p netip.Prefix) bool {
		f := model.FamilyOf(p.Addr())
		return open[familyIndex(f)] || !svc.ClusterIP(f).IsValid()
	})
	in.ranges = rangeSet(in.ranges)
	svc.LoadBalancerSourceRanges = in.ranges
}

// intakePolicies reads the traffic policies and the health check (S9), and session affinity (S11, S32).
func intakePolicies(in *serviceIntake, obj *corev1.Service, bad func(string, error)) {
	svc, spec := in.model, &obj.Spec
	if p := spec.InternalTrafficPolicy; p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal {
		svc.InternalTrafficPolicy = model.TrafficPolicyLocal
	}
	if spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		switch spec.Type {
		case corev1.ServiceTypeLoadBalancer:
			svc.ExternalTrafficPolicy = model.TrafficPolicyLocal
			if port, ok := parsePort(spec.HealthCheckNodePort); ok {
				svc.HealthCheck = &model.HealthCheck{NodePort: port}
			} else if spec.HealthCheckNodePort != 0 {
				bad("healthCheckNodePort", fmt.Errorf("port %d is out of range", spec.HealthCheckNodePort))
			}
		case corev1.ServiceTypeNodePort:
			svc.ExternalTrafficPolicy = model.TrafficPolicyLocal
		default: // ClusterIP, and an empty type means it
			if len(spec.ExternalIPs) > 0 {
				svc.ExternalTrafficPolicy = model.TrafficPolicyLocal
			}
		}
	}
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		svc.SessionAffinityTimeout = defaultAffinityTimeout
		if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil && *c.ClientIP.TimeoutSeconds > 0 {
			svc.SessionAffinityTimeout = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}
}

// intakePorts reads the ports (S4).
func intakePorts(in *serviceIntake, obj *corev1.Service, bad func(string, error)) {
	svc := in.model
	svc.Ports = make([]model.ServicePort, 0, len(obj.Spec.Ports))
	for i := range obj.Spec.Ports {
		p := &obj.Spec.Ports[i]
		bad := func(err error) { bad(fmt.Sprintf("ports[%d]", i), err) }
		protocol, err := parseProtocol(p.Protocol)
		if err != nil {
			bad(err)
			continue
		}
		number, ok := parsePort(p.Port)
		if !ok {
			bad(fmt.Errorf("port %d is out of range", p.Port))
			continue
		}
		if slices.ContainsFunc(svc.Ports, func(o model.ServicePort) bool {
			return o.Protocol == protocol && (o.Name == p.Name || o.Port == number)
		}) {
			bad(fmt.Errorf("another %v port has the name %q or the number %d", protocol, p.Name, number))
			continue
		}
		nodePort, ok := parsePort(p.NodePort)
		if !ok && p.NodePort != 0 {
			bad(fmt.Errorf("node port %d is out of range", p.NodePort))
			nodePort = 0
		}
		svc.Ports = append(svc.Ports, model.ServicePort{Name: p.Name, Protocol: protocol, Port: number, NodePort: nodePort})
	}
}

// complete returns the service with everything that depends on other objects: the routes, by port and family; the count
// of local endpoints, by family; and the VIPs as allowed sources where a range holds the node's address. It returns
// in.model itself if that has it all already.
func (in *serviceIntake) complete(routes [][2]model.Routes, localEndpoints [2]int, nodeIP func(model.Family) netip.Addr) *model.Service {
	svc := *in.model
	changed := false
	for i, r := range routes {
		if p := &svc.Ports[i]; p.RoutesIPv4 != r[0] || p.RoutesIPv6 != r[1] {
			if !changed {
				svc.Ports, changed = slices.Clone(svc.Ports), true
			}
			svc.Ports[i].RoutesIPv4, svc.Ports[i].RoutesIPv6 = r[0], r[1]
		}
	}
	if h := svc.HealthCheck; h != nil && (h.LocalEndpointsIPv4 != localEndpoints[0] || h.LocalEndpointsIPv6 != localEndpoints[1]) {
		svc.HealthCheck = &model.HealthCheck{NodePort: h.NodePort, LocalEndpointsIPv4: localEndpoints[0], LocalEndpointsIPv6: localEndpoints[1]}
		changed = true
	}
	if len(in.ranges) > 0 {
		if ranges := in.rangesWithVIPs(nodeIP); !slices.Equal(ranges, svc.LoadBalancerSourceRanges) {
			svc.LoadBalancerSourceRanges, changed = ranges, true
		}
	}
	if !changed {
		return in.model
	}
	return &svc
}

// rangesWithVIPs is S26: a request from the node to a VIP that the host has as an address of its own comes back with
// the VIP as its source, so the VIP must be allowed where the node is.
func (in *serviceIntake) rangesWithVIPs(nodeIP func(model.Family) netip.Addr) []netip.Prefix {
	ranges := in.ranges
	for _, f := range model.Families() {
		ip := nodeIP(f)
		if !ip.IsValid() || !slices.ContainsFunc(in.ranges, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			continue
		}
		for _, vip := range in.model.LoadBalancerIPs {
			if model.FamilyOf(vip) == f {
				ranges = append(slices.Clip(ranges), netip.PrefixFrom(vip, vip.BitLen()))
			}
		}
	}
	if len(ranges) == len(in.ranges) {
		return in.ranges
	}
	return rangeSet(ranges)
}

func familyIndex(f model.Family) int {
	if f == model.IPv4 {
		return 0
	}
	return 1
}

// cloneMap copies a map; an empty one is nil.
func cloneMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(m)
}

// rangeSet sorts ranges in place and drops those that lie within another one, as model.NewService does.
func rangeSet(list []netip.Prefix) []netip.Prefix {
	slices.SortFunc(list, netip.Prefix.Compare)
	kept := list[:0]
	for _, p := range list { // what holds p is sorted before it
		if n := len(kept); n == 0 || !kept[n-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return kept
}

// sortedSet sorts a list in place and drops duplicates.
func sortedSet[T comparable](list []T, compare func(T, T) int) []T {
	slices.SortFunc(list, compare)
	return slices.Compact(list)
}
