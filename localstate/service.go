package localstate

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
	"sigs.k8s.io/kube-proxy-lib/model"
)

const (
	labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

	// annotationLastApplied has kubectl's copy of the whole object, which a backend does not need.
	annotationLastApplied = corev1.LastAppliedConfigAnnotation

	defaultAffinityTimeout = time.Duration(corev1.DefaultClientIPServiceAffinitySeconds) * time.Second
)

// serviceIntake is the part of a Service object that is kept: the fields of a model.Service, and some others.
//
// Some fields of a model.Service follow from other objects, too: the ports' routes and whether they have too many
// endpoints, the health check's counts, and LoadBalancerSourceRanges, which may have VIPs in addition to the ranges.
// Their values in fields are undefined: complete computes them, and nothing else reads them. So, once the service has
// been handed over, fields points to that same value, and there is only one copy.
type serviceIntake struct {
	fields *model.Service
	// ranges are the source ranges of the object (S8), without VIPs.
	ranges []netip.Prefix
	// families are those in which the service has endpoints.
	families model.FamilySet
	// externals are those in which the service has external addresses other than node ports (S10).
	// Options.NoExternalIPs may hide them from the model.
	externals model.FamilySet
}

// saysTheSameAs reports whether two readings of a Service object have the same content.
func (in *serviceIntake) saysTheSameAs(o *serviceIntake) bool {
	return in.families == o.families && in.externals == o.externals && slices.Equal(in.ranges, o.ranges) &&
		in.plain().Equal(o.plain())
}

// plain returns the fields, with those that follow from other objects empty.
func (in *serviceIntake) plain() *model.Service {
	return in.complete(make([]portOutcome, len(in.fields.Ports)), model.PerFamily[int]{},
		func(model.Family) netip.Addr { return netip.Addr{} })
}

// skipReason returns why a Service is not served, or "" if it is (S1, S2).
func (o options) skipReason(obj *corev1.Service) string {
	switch name, labelled := obj.Labels[labelServiceProxyName]; {
	case labelled && o.ServiceProxyName == "":
		return fmt.Sprintf("label %s=%q: it belongs to another proxy", labelServiceProxyName, name)
	case o.ServiceProxyName != "" && o.ServiceProxyName != AllServiceProxies && name != o.ServiceProxyName:
		return fmt.Sprintf("label %s is not %q", labelServiceProxyName, o.ServiceProxyName)
	case obj.Spec.Type == corev1.ServiceTypeExternalName:
		if !o.ExternalNameServices {
			return "type ExternalName"
		} else if obj.Spec.ExternalName == "" {
			return "type ExternalName without an external name"
		}
	case obj.Spec.ClusterIP == corev1.ClusterIPNone:
		if !o.HeadlessServices {
			return "headless: clusterIP is None"
		}
	case obj.Spec.ClusterIP == "":
		return "no clusterIP"
	}
	return ""
}

// clusterIPText returns the text of the cluster IP of a family (S3).
func clusterIPText(spec *corev1.ServiceSpec, f model.Family) string {
	if len(spec.IPFamilies) == 0 {
		if addr, err := lenient.Addr(spec.ClusterIP); err == nil && model.FamilyOf(addr) != f {
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

// intakeService reads a Service object. It returns nil and the reason if the Service is not proxied.
func intakeService(log klog.Logger, o options, families []model.Family, obj *corev1.Service) (*serviceIntake, string) {
	if o.AdmitService != nil {
		own := obj.DeepCopy() // the object may be in an informer's cache
		if !o.AdmitService(own) {
			return nil, "AdmitService does not admit it"
		}
		own.Namespace, own.Name = obj.Namespace, obj.Name
		obj = own
	}
	if reason := o.skipReason(obj); reason != "" {
		return nil, reason
	}
	spec := &obj.Spec
	bad := func(field string, err error) {
		log.Info("Ignoring an invalid value of a Service", "service", klog.KObj(obj), "field", field,
			"reason", err.Error())
	}

	svc := &model.Service{
		Name:    model.ServiceName{Namespace: obj.Namespace, Name: obj.Name},
		UID:     string(obj.UID),
		Type:    serviceType(spec.Type),
		Created: obj.CreationTimestamp.UTC().Truncate(time.Second),
	}
	if !o.NoMetadata {
		svc.Labels, svc.Annotations = maps.Clone(obj.Labels), maps.Clone(obj.Annotations)
		delete(svc.Annotations, annotationLastApplied)
	}
	if class := spec.LoadBalancerClass; class != nil {
		svc.LoadBalancerClass = *class
	}
	in := &serviceIntake{fields: svc}

	switch {
	case svc.Type == model.ServiceTypeExternalName:
		svc.ExternalName = spec.ExternalName
	case spec.ClusterIP == corev1.ClusterIPNone:
		svc.Headless = true
		in.families = headlessFamilies(families, spec)
	default:
		intakeClusterIPs(in, families, obj, bad)
	}
	if svc.ExternalName == "" && in.families == 0 {
		return nil, "no clusterIP of a family that this node serves"
	}
	intakeExternal(in, o, obj, bad)
	intakePolicies(in, obj, bad)
	intakePorts(in, obj, bad)
	if len(svc.ClusterIPs) == 0 { // there is no traffic, whatever an unchecked object says
		svc.HealthCheck = nil
		for i := range svc.Ports {
			svc.Ports[i].NodePort = 0
		}
	}
	return in, ""
}

// headlessFamilies returns those of the object's families that are served; an object that names none has both.
func headlessFamilies(families []model.Family, spec *corev1.ServiceSpec) (served model.FamilySet) {
	for _, f := range families {
		if len(spec.IPFamilies) == 0 || slices.Contains(spec.IPFamilies, corev1.IPFamily(f.String())) {
			served |= f.Set()
		}
	}
	return served
}

// intakeClusterIPs reads the cluster IPs of the families that are served (S3).
func intakeClusterIPs(in *serviceIntake, families []model.Family, obj *corev1.Service, bad func(string, error)) {
	svc, spec := in.fields, &obj.Spec
	for _, f := range families {
		text := clusterIPText(spec, f)
		if text == "" || text == corev1.ClusterIPNone {
			continue
		}
		addr, err := lenient.Addr(text)
		if err == nil && model.FamilyOf(addr) != f {
			err = fmt.Errorf("%q is not of family %v", text, f)
		}
		if err != nil {
			bad("clusterIPs", err)
			continue
		}
		svc.ClusterIPs = append(svc.ClusterIPs, addr)
		in.families |= f.Set()
	}
	if len(svc.ClusterIPs) == 2 && len(spec.IPFamilies) > 0 && spec.IPFamilies[0] == corev1.IPv6Protocol {
		slices.Reverse(svc.ClusterIPs) // primary family first
	}
}

// serviceType reads the type; an empty one is ClusterIP (S11).
func serviceType(t corev1.ServiceType) model.ServiceType {
	switch t {
	case corev1.ServiceTypeNodePort:
		return model.ServiceTypeNodePort
	case corev1.ServiceTypeLoadBalancer:
		return model.ServiceTypeLoadBalancer
	case corev1.ServiceTypeExternalName:
		return model.ServiceTypeExternalName
	}
	return model.ServiceTypeClusterIP
}

// intakeExternal reads the external IPs (S6), the load-balancer VIPs (S7) and their source ranges (S8).
func intakeExternal(in *serviceIntake, o options, obj *corev1.Service, bad func(string, error)) {
	svc := in.fields
	add := func(field, text string, list *[]netip.Addr, program bool) {
		addr, err := lenient.Addr(text)
		if err != nil {
			bad(field, err)
			return
		}
		f := model.FamilyOf(addr)
		if !svc.ClusterIP(f).IsValid() {
			return
		}
		in.externals |= f.Set()
		if program {
			*list = append(*list, addr)
		}
	}
	for _, text := range obj.Spec.ExternalIPs {
		add("externalIPs", text, &svc.ExternalIPs, !o.NoExternalIPs)
	}
	for _, ingress := range obj.Status.LoadBalancer.Ingress {
		if isVIP(&ingress) {
			add("status.loadBalancer.ingress", ingress.IP, &svc.LoadBalancerIPs, true)
		}
	}
	svc.ExternalIPs = sortedSet(svc.ExternalIPs, netip.Addr.Compare)
	svc.LoadBalancerIPs = sortedSet(svc.LoadBalancerIPs, netip.Addr.Compare)

	var open model.FamilySet // a /0 allows everybody
	for _, text := range obj.Spec.LoadBalancerSourceRanges {
		prefix, err := parsePrefix(text)
		if err != nil {
			bad("loadBalancerSourceRanges", err)
			continue
		}
		if prefix.Bits() == 0 {
			open |= model.FamilyOf(prefix.Addr()).Set()
		}
		in.ranges = append(in.ranges, prefix)
	}
	in.ranges = slices.DeleteFunc(in.ranges, func(p netip.Prefix) bool {
		f := model.FamilyOf(p.Addr())
		return open.Has(f) || !svc.ClusterIP(f).IsValid()
	})
	in.ranges = rangeSet(in.ranges)
	svc.LoadBalancerSourceRanges = in.ranges
}

// intakePolicies reads the traffic policies and the health check (S9), and session affinity (S11, S32).
func intakePolicies(in *serviceIntake, obj *corev1.Service, bad func(string, error)) {
	svc, spec := in.fields, &obj.Spec
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
		default: // ClusterIP; an empty type means ClusterIP
			if len(spec.ExternalIPs) > 0 {
				svc.ExternalTrafficPolicy = model.TrafficPolicyLocal
			}
		}
	}
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		svc.SessionAffinityTimeout = defaultAffinityTimeout
		if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil &&
			*c.ClientIP.TimeoutSeconds > 0 {
			svc.SessionAffinityTimeout = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}
}

// intakePorts reads the ports (S4).
func intakePorts(in *serviceIntake, obj *corev1.Service, bad func(string, error)) {
	svc := in.fields
	svc.Ports = make([]model.ServicePort, 0, len(obj.Spec.Ports))
	taken := make(map[portKey]struct{}, 2*len(obj.Spec.Ports))
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
		byName, byNumber := portKey{protocol: protocol, name: p.Name}, portKey{protocol: protocol, number: number}
		_, sameName := taken[byName]
		_, sameNumber := taken[byNumber]
		if sameName || sameNumber {
			bad(fmt.Errorf("duplicate %v port: name %q or number %d", protocol, p.Name, number))
			continue
		}
		taken[byName], taken[byNumber] = struct{}{}, struct{}{}
		nodePort, ok := parsePort(p.NodePort)
		if !ok && p.NodePort != 0 {
			bad(fmt.Errorf("node port %d is out of range", p.NodePort))
			nodePort = 0
		}
		port := model.ServicePort{Name: p.Name, Protocol: protocol, Port: number, NodePort: nodePort}
		if p.AppProtocol != nil {
			port.AppProtocol = *p.AppProtocol
		}
		if p.TargetPort != (intstr.IntOrString{}) {
			port.TargetPort = p.TargetPort.String()
		}
		svc.Ports = append(svc.Ports, port)
	}
}

// portKey is unique among the ports of a service: a name or, if number is not 0, a number.
type portKey struct {
	protocol model.Protocol
	name     string
	number   uint16
}

// portsByName appends the indexes of the ports, in order of name and protocol.
func (in *serviceIntake) portsByName(order []int) []int {
	ports := in.fields.Ports
	for i := range ports {
		order = append(order, i)
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(ports[a].Name, ports[b].Name), cmp.Compare(ports[a].Protocol, ports[b].Protocol))
	})
	return order
}

// complete returns the service with everything that depends on other objects: the routes, by port and family; the count
// of local endpoints, by family; and the VIPs as allowed sources if a range contains the node's address. It returns
// in.fields itself if that is already complete.
func (in *serviceIntake) complete(outcomes []portOutcome, localEndpoints model.PerFamily[int],
	nodeIP func(model.Family) netip.Addr) *model.Service {
	old := in.fields
	ports, check, ranges := old.Ports, old.HealthCheck, old.LoadBalancerSourceRanges
	changed := false
	for i, o := range outcomes {
		if ports[i].Routes != o.routes || ports[i].TooManyEndpoints != o.tooManyEndpoints {
			if !changed {
				ports, changed = slices.Clone(ports), true
			}
			ports[i].Routes, ports[i].TooManyEndpoints = o.routes, o.tooManyEndpoints
		}
	}
	if check != nil && check.LocalEndpoints != localEndpoints {
		now := *check
		now.LocalEndpoints = localEndpoints
		check, changed = &now, true
	}
	if len(in.ranges) > 0 {
		if all := rangesWithVIPs(in.ranges, in.fields.LoadBalancerIPs, nodeIP); !slices.Equal(all, ranges) {
			ranges, changed = all, true
		}
	}
	if !changed {
		return old
	}
	svc := *old
	svc.Ports, svc.HealthCheck, svc.LoadBalancerSourceRanges = ports, check, ranges
	return &svc
}

// rangeSet sorts ranges in place and drops those that lie within another one: 10.0.0.0/8 and 10.1.0.0/16 become the
// first.
func rangeSet(list []netip.Prefix) []netip.Prefix {
	slices.SortFunc(list, model.ComparePrefixes)
	kept := list[:0]
	for _, p := range list { // ranges that contain p are sorted before it
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
