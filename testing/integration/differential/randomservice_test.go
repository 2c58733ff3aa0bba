package differential

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/proxy/apis"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// service makes a service, or changes one that exists. Now and then it replaces one without a delete event.
func (g *generator) service() object {
	name := g.serviceName()
	old, ok := g.objects[key{"Service", name.Namespace, name.Name}].(*corev1.Service)
	if !ok || testkit.OneIn(g, 32) {
		return g.newService(name)
	}
	return g.changedService(old)
}

func (g *generator) newService(name types.NamespacedName) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{}}
	svc.UID, svc.Namespace, svc.Name = g.meta(name.Namespace, name.Name)
	spec := &svc.Spec
	spec.Type = testkit.Pick(g, corev1.ServiceTypeClusterIP, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer)
	switch {
	case testkit.OneIn(g, 8):
		spec.Type = corev1.ServiceTypeExternalName
	case testkit.OneIn(g, 32):
		spec.Type, spec.ClusterIPs = corev1.ServiceTypeClusterIP, []string{corev1.ClusterIPNone}
	case testkit.OneIn(g, 32):
		spec.Type, spec.ClusterIPs = corev1.ServiceTypeClusterIP, []string{}
	}
	spec.Ports = []corev1.ServicePort{g.port("http")}
	for _, change := range g.serviceChanges() {
		if g.IntN(3) == 0 {
			change(svc)
		}
	}
	g.finishService(svc)
	return svc
}

func (g *generator) changedService(old *corev1.Service) *corev1.Service {
	svc := old.DeepCopy()
	for range 1 + g.IntN(2) {
		testkit.Pick(g, g.serviceChanges()...)(svc)
	}
	if testkit.OneIn(g, 8) && !slices.Contains(svc.Spec.ClusterIPs, corev1.ClusterIPNone) {
		g.changeType(svc)
	}
	if len(old.Spec.ClusterIPs) == 2 && len(svc.Spec.ClusterIPs) == 2 { // directly, in one update
		svc.Spec.ClusterIPs, svc.Spec.IPFamilies = old.Spec.ClusterIPs, old.Spec.IPFamilies
	}
	g.finishService(svc)
	return svc
}

// changeType changes a service's type, also to and from ExternalName, where it loses its cluster IPs.
func (g *generator) changeType(svc *corev1.Service) {
	svc.Spec.Type = testkit.Pick(g, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)
	if svc.Spec.Type != corev1.ServiceTypeExternalName && svc.Spec.ClusterIPs != nil && len(svc.Spec.ClusterIPs) == 0 {
		svc.Spec.ClusterIPs = nil
	}
}

func (g *generator) serviceChanges() []func(*corev1.Service) {
	return []func(*corev1.Service){
		func(s *corev1.Service) { s.Spec.ExternalIPs = g.externalIPs("203.0.113.5", "2001:db8::5") },
		func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = g.ingress() },
		func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = g.ingress() },
		func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = g.sourceRanges() },
		func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster },
		func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal },
		func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
		},
		func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		},
		func(s *corev1.Service) { g.changePorts(s) },
		func(s *corev1.Service) { g.changePorts(s) },
		func(s *corev1.Service) { g.changeAffinity(&s.Spec) },
		func(s *corev1.Service) { g.changeFamilies(&s.Spec) },
		func(s *corev1.Service) { g.changeMeta(s) },
		func(s *corev1.Service) { g.changeNodePorts(&s.Spec) },
	}
}

// port returns a port of a service with a name, which usually determines the number.
func (g *generator) port(name string) corev1.ServicePort {
	p := corev1.ServicePort{Name: name, Protocol: g.protocol(), Port: 80}
	if testkit.OneIn(g, 8) {
		p.Port = testkit.Pick[int32](g, 1, 81, 65535)
	}
	p.TargetPort = testkit.Pick(g, intstr.FromInt32(8080), intstr.FromString("target"))
	return p
}

// changePorts adds, drops or renames a port, or changes its protocol or number.
func (g *generator) changePorts(s *corev1.Service) {
	ports := slices.Clone(s.Spec.Ports)
	i := g.IntN(max(1, len(ports)))
	switch g.IntN(6) {
	case 0, 1:
		ports = append(ports, g.port(testkit.Pick(g, "http", "dns", "web")))
	case 2:
		if len(ports) > 1 {
			ports = dropAt(ports, i)
		}
	case 3:
		if len(ports) > 0 {
			ports[i].Name = testkit.Pick(g, "", "http", "dns", "web")
		}
	case 4:
		if len(ports) > 0 {
			ports[i].Protocol = g.protocol()
		}
	default:
		slices.Reverse(ports)
	}
	s.Spec.Ports = ports
}

func (g *generator) changeNodePorts(spec *corev1.ServiceSpec) {
	for i := range spec.Ports {
		spec.Ports[i].NodePort = 0
	}
	spec.AllocateLoadBalancerNodePorts = ptr.To(testkit.OneIn(g, 2))
}

func (g *generator) changeAffinity(spec *corev1.ServiceSpec) {
	spec.SessionAffinity, spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	if testkit.OneIn(g, 2) {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(testkit.Pick[int32](g, 1, 10800, 86400))}}
	}
}

// changeFamilies adds a second family to a service, or takes it away.
func (g *generator) changeFamilies(spec *corev1.ServiceSpec) {
	if len(spec.ClusterIPs) == 2 {
		spec.ClusterIPs = slices.Clone(spec.ClusterIPs[:1])
		spec.IPFamilies = slices.Clone(spec.IPFamilies[:min(1, len(spec.IPFamilies))])
		spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
	} else if len(spec.ClusterIPs) == 1 && spec.ClusterIPs[0] != corev1.ClusterIPNone {
		second := g.clusterIP(familyOfText(spec.ClusterIPs[0]) == corev1.IPv4Protocol)
		spec.ClusterIPs = []string{spec.ClusterIPs[0], second}
		spec.IPFamilies = []corev1.IPFamily{familyOfText(spec.ClusterIPs[0]), familyOfText(second)}
		spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyPreferDualStack)
	}
}

func (g *generator) changeMeta(s *corev1.Service) {
	s.Labels = g.label(s.Labels, apis.LabelServiceProxyName, "cilium", "")
	s.Labels = g.label(s.Labels, "app", "x")
	s.Annotations = g.label(s.Annotations, "note", "x")
	if testkit.OneIn(g, 2) {
		s.Spec.TrafficDistribution = testkit.Pick(g, nil, ptr.To(corev1.ServiceTrafficDistributionPreferSameZone))
		s.Spec.PublishNotReadyAddresses = testkit.OneIn(g, 2)
	}
}

func (g *generator) clusterIP(v6 bool) string {
	if v6 {
		return testkit.Pick(g, "fd00:96::1", "fd00:96::1", "fd00:96::2", "FD00:0096::3")
	}
	return testkit.Pick(g, "10.96.0.1", "10.96.0.1", "10.96.0.2", "010.096.000.003", "::ffff:10.96.0.4")
}

func (g *generator) externalIPs(v4, v6 string) []string {
	return testkit.Some(g, v4, v6, testkit.Pick(g, "203.0.113.6", "203.000.113.005", "::ffff:203.0.113.6", v4))
}

func (g *generator) ingress() []corev1.LoadBalancerIngress {
	var list []corev1.LoadBalancerIngress
	for _, ip := range g.externalIPs("198.51.100.7", "2001:db8::7") {
		in := corev1.LoadBalancerIngress{IP: ip,
			IPMode: ptr.To(testkit.Pick(g, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeVIP,
				corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy))}
		if g.malformed && testkit.OneIn(g, 2) {
			in.IPMode = nil
		}
		list = append(list, in)
	}
	if testkit.OneIn(g, 8) {
		list = append(list, corev1.LoadBalancerIngress{Hostname: "lb.example.com"})
	}
	return list
}

func (g *generator) sourceRanges() []string {
	ranges := testkit.Some(g, "192.0.2.0/24", "198.51.100.0/24", "2001:db8::/32")
	if testkit.OneIn(g, 2) {
		ranges = append(ranges,
			testkit.Pick(g, " 192.0.2.128/25", "192.0.2.1/24 ", "010.000.0.0/8", "192.0.2.0/23", "2001:DB8::1/33",
				"::ffff:192.0.2.0/120", "0.0.0.0/1", "192.0.2.10/32", "2001:db8::10/128"))
	}
	if testkit.OneIn(g, 8) {
		ranges = append(ranges, testkit.Pick(g, "0.0.0.0/0", "::/0", "::ffff:0.0.0.0/96"))
	}
	if g.malformed && testkit.OneIn(g, 8) {
		ranges = append(ranges, testkit.Pick(g, "bogus", "", "10.0.0.0"))
	}
	return ranges
}

// finishService makes the fields consistent, as the API requires.
func (g *generator) finishService(svc *corev1.Service) {
	spec := &svc.Spec
	g.finishPorts(spec)
	if spec.Type == corev1.ServiceTypeExternalName {
		spec.ExternalName = "example.com"
		spec.ClusterIP, spec.ClusterIPs, spec.IPFamilies, spec.IPFamilyPolicy = "", nil, nil, nil
	} else if spec.ExternalName = ""; spec.ClusterIPs == nil {
		v6 := g.IntN(4) == 3
		spec.ClusterIPs = []string{g.clusterIP(v6)}
		spec.IPFamilies, spec.IPFamilyPolicy = []corev1.IPFamily{familyOfText(spec.ClusterIPs[0])},
			ptr.To(corev1.IPFamilyPolicySingleStack)
		if testkit.OneIn(g, 2) {
			g.changeFamilies(spec)
		}
		if testkit.OneIn(g, 8) {
			spec.IPFamilies = nil // as old objects have it
		}
		if testkit.OneIn(g, 32) && len(spec.ClusterIPs) == 1 &&
			len(spec.IPFamilies) == 1 { // more families than addresses
			spec.IPFamilies = append(spec.IPFamilies, familyOfText(g.clusterIP(!v6)))
		}
	}
	spec.ClusterIP = ""
	if len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	if spec.InternalTrafficPolicy == nil {
		spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
	}
	g.finishExternal(svc)
	if g.malformed {
		g.malformService(svc)
	}
}

// finishExternal does so for the fields that depend on the type.
func (g *generator) finishExternal(svc *corev1.Service) {
	spec := &svc.Spec
	balancer := spec.Type == corev1.ServiceTypeLoadBalancer
	external := balancer || spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeClusterIP && len(spec.ExternalIPs) > 0
	switch {
	case !external:
		spec.ExternalTrafficPolicy = ""
	case spec.ExternalTrafficPolicy == "":
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	spec.HealthCheckNodePort = 0
	if balancer && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		spec.HealthCheckNodePort = 31000
		if svc.Name == "b" {
			spec.HealthCheckNodePort = 31001
		}
	}
	if !balancer {
		spec.LoadBalancerSourceRanges, spec.AllocateLoadBalancerNodePorts, svc.Status.LoadBalancer.Ingress = nil, nil,
			nil
	} else if spec.AllocateLoadBalancerNodePorts == nil {
		spec.AllocateLoadBalancerNodePorts = ptr.To(true)
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		switch {
		case spec.Type == corev1.ServiceTypeNodePort, balancer && *spec.AllocateLoadBalancerNodePorts:
			if p.NodePort == 0 {
				p.NodePort = 30080 + int32(i) // unique by number and protocol
			}
		default:
			p.NodePort = 0
		}
	}
	seen := map[corev1.ServicePort]bool{}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		for k := (corev1.ServicePort{Protocol: p.Protocol, NodePort: p.NodePort}); p.NodePort != 0 &&
			seen[k]; k.NodePort = p.NodePort {
			p.NodePort++
		}
		seen[corev1.ServicePort{Protocol: p.Protocol, NodePort: p.NodePort}] = true
	}
}

// finishPorts drops duplicate ports, and names them if there are several.
func (g *generator) finishPorts(spec *corev1.ServiceSpec) {
	var kept []corev1.ServicePort
	for _, p := range spec.Ports {
		if !slices.ContainsFunc(kept, func(o corev1.ServicePort) bool {
			return o.Name == p.Name || o.Protocol == p.Protocol && o.Port == p.Port
		}) {
			kept = append(kept, p)
		}
	}
	if len(kept) > 1 {
		kept = slices.DeleteFunc(kept, func(p corev1.ServicePort) bool { return p.Name == "" })
	}
	spec.Ports = kept
}

// malformService makes a service invalid.
func (g *generator) malformService(svc *corev1.Service) {
	switch g.IntN(8) {
	case 0:
		svc.Spec.SessionAffinity, svc.Spec.SessionAffinityConfig = corev1.ServiceAffinityClientIP, nil
	case 1:
		svc.Spec.ExternalIPs = append(slices.Clone(svc.Spec.ExternalIPs),
			testkit.Pick(g, "bogus", "", " 203.0.113.9", "203.0.113.300"))
	case 2:
		svc.Spec.InternalTrafficPolicy = nil
	case 3:
		svc.Spec.Type = "" // reads as ClusterIP
	}
}
