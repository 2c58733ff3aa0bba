package localstate

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestWhichServicesAreTaken(t *testing.T) {
	label := func(value string) serviceOption {
		return func(obj *corev1.Service) {
			metav1.SetMetaDataLabel(&obj.ObjectMeta, "service.kubernetes.io/service-proxy-name", value)
		}
	}
	clusterIP := func(ip string) serviceOption { return func(obj *corev1.Service) { obj.Spec.ClusterIP = ip } }
	for _, tc := range []struct {
		name  string
		opts  any
		obj   *corev1.Service
		taken bool
	}{
		{"S1 a service without the proxy label is taken", Options{}, aService("web"), true},
		{"S1 a service for another proxy is not", Options{}, aService("web", label("cilium")), false},
		{"S1 nor is one whose proxy label is empty: the label is there", Options{}, aService("web", label("")), false},
		{"S1 another proxy takes the services with its name", ClusterOptions{ServiceProxyName: "mine"},
			aService("web", label("mine")), true},
		{"S1 another proxy does not take the services of a third", ClusterOptions{ServiceProxyName: "mine"},
			aService("web", label("cilium")), false},
		{"S1 another proxy does not take services without the label", ClusterOptions{ServiceProxyName: "mine"},
			aService("web"), false},
		{"S2 a headless service is not taken", Options{}, aService("web", clusterIP("None")), false},
		{"S2 a service that has no cluster IP yet is not taken, whatever clusterIPs says", Options{},
			aService("web", clusterIP("")), false},
		{"S2 an ExternalName service is not taken, even with a cluster IP", Options{},
			aService("web", typed(corev1.ServiceTypeExternalName)), false},
		{"S2 a service of the other family is not taken", Options{Families: []model.Family{model.IPv4}},
			aService("web", clusterIPs("fd00::1")), false},
		{"S2 a dual-stack service is taken for the one family that is served",
			Options{Families: []model.Family{model.IPv4}}, aService("web", clusterIPs("fd00::1", "10.0.0.1")), true},
		{"S4 type, load-balancer class, appProtocol and traffic distribution do not matter", Options{},
			aService("web", typed(""), func(obj *corev1.Service) {
				obj.Spec.LoadBalancerClass = ptr.To("example.com/any")
				obj.Spec.LoadBalancerIP = "192.0.2.1"
				obj.Spec.TrafficDistribution = ptr.To("PreferClose")
				obj.Spec.PublishNotReadyAddresses = true
				obj.Spec.Ports[0].AppProtocol = ptr.To("kubernetes.io/h2c")
			}), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opts := allOptions(tc.opts)
			opts.NodeName = me
			w := newWorldWith(t, opts, tc.obj)
			require.Equal(t, tc.taken, w.service("web") != nil)
			explanation, ok := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
			require.True(t, ok)
			require.Equal(t, tc.taken, explanation.Skipped == "", explanation.Skipped)
		})
	}
}

func TestClusterIPs(t *testing.T) {
	spec := func(clusterIP string, clusterIPs []string, families ...corev1.IPFamily) serviceOption {
		return func(obj *corev1.Service) {
			obj.Spec.ClusterIP, obj.Spec.ClusterIPs, obj.Spec.IPFamilies = clusterIP, clusterIPs, families
		}
	}
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	for _, tc := range []struct {
		name string
		spec serviceOption
		want []string // nil: the service is not served
	}{
		{"S3 each family takes the IP at its place", spec("10.0.0.1", []string{"10.0.0.1", "fd00::1"}, v4, v6),
			[]string{"10.0.0.1", "fd00::1"}},
		{"S3 the primary family comes first", spec("fd00::1", []string{"fd00::1", "10.0.0.1"}, v6, v4),
			[]string{"fd00::1", "10.0.0.1"}},
		{"S3 without families the IPv4 clusterIP counts, and clusterIPs does not",
			spec("10.0.0.1", []string{"10.0.0.1", "fd00::1"}), []string{"10.0.0.1"}},
		{"S3 without families the IPv6 clusterIP counts", spec("fd00::1", nil), []string{"fd00::1"}},
		{"S3 a list that is too short has none for the second family", spec("10.0.0.1", []string{"10.0.0.1"}, v4, v6),
			[]string{"10.0.0.1"}},
		{"S3 an empty list has none at all", spec("10.0.0.1", nil, v4), nil},
		{"S3 clusterIPs count where there are families, not clusterIP", spec("10.0.0.9", []string{"10.0.0.1"}, v4),
			[]string{"10.0.0.1"}},
		{"S5 an IP of the wrong family is none", spec("10.0.0.1", []string{"10.0.0.1", "10.0.0.2"}, v4, v6),
			[]string{"10.0.0.1"}},
		{"S5 an invalid IP is none", spec("10.0.0.1", []string{"10.0.0.1", "fd00:::1"}, v4, v6), []string{"10.0.0.1"}},
		{"S5 a service whose only IP is invalid is not taken", spec("10.0.0.256", []string{"10.0.0.256"}, v4), nil},
		{"S5 a clusterIP without families that is invalid is none", spec("10.0.0.256", nil), nil},
		{"S5 leading zeros are decimal", spec("010.0.00.010", []string{"010.0.00.010"}, v4), []string{"10.0.0.10"}},
		{"S5 an IPv4-mapped IPv6 address is the IPv4 address", spec("::ffff:10.0.0.1", []string{"::ffff:10.0.0.1"}, v4),
			[]string{"10.0.0.1"}},
		{"S5 IPv6 is handed over in canonical form", spec("FD00:0::01", []string{"FD00:0::01"}, v6),
			[]string{"fd00::1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, aService("web", tc.spec))
			if tc.want == nil {
				require.Nil(t, w.service("web"))
				return
			}
			require.Equal(t, tc.want, texts(w.mustService("web").ClusterIPs))
		})
	}
}

func TestExternalAddresses(t *testing.T) {
	ingress := func(list ...corev1.LoadBalancerIngress) serviceOption {
		return func(obj *corev1.Service) { obj.Status.LoadBalancer.Ingress = list }
	}
	vip, proxy := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy
	dual := clusterIPs("10.0.0.1", "fd00::1")
	for _, tc := range []struct {
		name     string
		opts     any
		service  *corev1.Service
		external []string
		vips     []string
	}{
		{"S6 external IPs of both families of the service", Options{},
			aService("web", dual, externalIPs("2001:db8::5", "192.0.2.5")), []string{"192.0.2.5", "2001:db8::5"}, nil},
		{"S6 external IPs of another family than the service's are left out", Options{},
			aService("web", externalIPs("2001:db8::5", "192.0.2.5")), []string{"192.0.2.5"}, nil},
		{"S6 external IPs can be switched off", ClusterOptions{NoExternalIPs: true},
			aService("web", externalIPs("192.0.2.5"), vips("192.0.2.7")), nil, []string{"192.0.2.7"}},
		{"S5 an invalid external IP is skipped and the others stay", Options{},
			aService("web", externalIPs("192.0.2.256", "192.0.2.5", "")), []string{"192.0.2.5"}, nil},
		{"S5 white space is not trimmed around an IP", Options{},
			aService("web", externalIPs(" 192.0.2.4", "192.0.2.5")), []string{"192.0.2.5"}, nil},
		{"S5 leading zeros of external IPs are decimal", Options{}, aService("web", externalIPs("192.000.002.010")),
			[]string{"192.0.2.10"}, nil},
		{"an external IP that is there twice counts once, and they are sorted", Options{},
			aService("web", externalIPs("192.0.2.10", "192.0.2.9", "192.0.2.10")), []string{"192.0.2.9", "192.0.2.10"},
			nil},
		{"S7 load-balancer IPs without a mode and with mode VIP count", Options{},
			aService("web", ingress(corev1.LoadBalancerIngress{IP: "192.0.2.7"},
				corev1.LoadBalancerIngress{IP: "192.0.2.8", IPMode: &vip})), nil, []string{"192.0.2.7", "192.0.2.8"}},
		{"S7 mode Proxy does not", Options{}, aService(
			"web", ingress(corev1.LoadBalancerIngress{IP: "192.0.2.7", IPMode: &proxy})), nil, nil},
		{"S7 nor does an entry with a host name only", Options{},
			aService("web", ingress(corev1.LoadBalancerIngress{Hostname: "lb.example.com"})), nil, nil},
		{"S7 the type of the service is not asked", Options{},
			aService("web", typed(corev1.ServiceTypeClusterIP), ingress(corev1.LoadBalancerIngress{IP: "192.0.2.7"})),
			nil, []string{"192.0.2.7"}},
		{"S7 load-balancer IPs of another family are left out", Options{}, aService("web", vips("2001:db8::7")), nil,
			nil},
		{"S5 S7 an invalid load-balancer IP is skipped", Options{}, aService("web", vips("somewhere", "192.0.2.7")),
			nil, []string{"192.0.2.7"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opts := allOptions(tc.opts)
			opts.NodeName = me
			svc := newWorldWith(t, opts, tc.service).mustService("web")
			require.ElementsMatch(t, tc.external, texts(svc.ExternalIPs))
			require.ElementsMatch(t, tc.vips, texts(svc.LoadBalancerIPs))
			require.IsIncreasing(t, append([]string{""}, addrTexts(svc.ExternalIPs)...))
		})
	}
}

// addrTexts are texts that sort like the addresses.
func addrTexts(list []netip.Addr) []string {
	var out []string
	for _, a := range list {
		b := a.AsSlice()
		out = append(out, string(append([]byte{byte(len(b))}, b...)))
	}
	return out
}

func TestSourceRanges(t *testing.T) {
	dual := clusterIPs("10.0.0.1", "fd00::1")
	for _, tc := range []struct {
		name    string
		service serviceOption
		ranges  []string
		want    []string
	}{
		{"S8 ranges of each family", dual, []string{"2001:db8::/32", "203.0.113.0/24"},
			[]string{"203.0.113.0/24", "2001:db8::/32"}},
		{"S8 white space around them is trimmed", dual, []string{" 203.0.113.0/24\t"}, []string{"203.0.113.0/24"}},
		{"S8 a /0 opens its own family", dual, []string{"203.0.113.0/24", "0.0.0.0/0", "2001:db8::/32"},
			[]string{"2001:db8::/32"}},
		{"S8 a /0 of IPv6 opens IPv6 only", dual, []string{"203.0.113.0/24", "::/0", "2001:db8::/32"},
			[]string{"203.0.113.0/24"}},
		{"S8 any address with /0 is the whole family", dual, []string{"203.0.113.0/24", "203.0.113.7/0"}, nil},
		{"S8 a mapped /96 is the whole of IPv4", dual, []string{"203.0.113.0/24", "::ffff:0:0/96", "2001:db8::/32"},
			[]string{"2001:db8::/32"}},
		{"S8 ranges of the other family only leave this one unrestricted", dual, []string{"2001:db8::/32"},
			[]string{"2001:db8::/32"}},
		{"S8 ranges of a family that the service does not have are gone", clusterIPs("10.0.0.1"),
			[]string{"2001:db8::/32"}, nil},
		{"S8 invalid ranges only leave the family unrestricted", dual,
			[]string{"203.0.113.0", "203.0.113.0/33", "", "anyone"}, nil},
		{"S5 leading zeros are decimal, and the host bits are cleared", dual, []string{"203.000.113.010/24"},
			[]string{"203.0.113.0/24"}},
		{"S5 an IPv4-mapped range is the IPv4 range", dual, []string{"::ffff:203.0.113.0/120"},
			[]string{"203.0.113.0/24"}},
		{"a range that is there twice, or inside another one, says nothing", dual,
			[]string{"203.0.113.128/25", "203.0.113.0/24", "203.0.113.0/24", "203.0.113.7/32", "203.0.114.0/24"},
			[]string{"203.0.113.0/24", "203.0.114.0/24"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, aService("web", tc.service, vips("192.0.2.7"), sourceRanges(tc.ranges...)))
			require.Equal(t, append([]string{}, tc.want...), texts(w.mustService("web").LoadBalancerSourceRanges))
			require.Empty(t, w.got.checkForm())
		})
	}
}

func TestVIPsAsAllowedSources(t *testing.T) {
	web := aService("web", clusterIPs("10.0.0.1", "fd00::1"), vips("192.0.2.7", "192.0.2.8", "2001:db8:1::7"),
		sourceRanges("203.0.113.0/24", "2001:db8::/48"))
	all := []string{"192.0.2.7/32", "192.0.2.8/32", "203.0.113.0/24", "2001:db8::/48"}
	plain := []string{"203.0.113.0/24", "2001:db8::/48"}
	for _, tc := range []struct {
		name string
		node *corev1.Node
		web  *corev1.Service
		want []string
	}{
		{"S26 no VIP is a source where the node's address is not known", aNode(), web, plain},
		{"S26 no VIP is a source where no range holds the node's address", aNode(internalIPs("198.51.100.9")), web,
			plain},
		{"S26 the VIPs of the family are sources where a range holds the node's address",
			aNode(internalIPs("203.0.113.9")), web, all},
		{"S26 the node's primary address of the family counts, no other",
			aNode(internalIPs("198.51.100.9", "203.0.113.9")), web, plain},
		{"S26 each family for itself", aNode(internalIPs("203.0.113.9", "2001:db8::9")), web,
			append(all[:3:3], "2001:db8::/48", "2001:db8:1::7/128")},
		{"S26 a VIP that a range holds already is not said again", aNode(internalIPs("192.0.2.9")),
			aService("web", vips("192.0.2.7"), sourceRanges("192.0.2.0/24")), []string{"192.0.2.0/24"}},
		{"S26 without ranges there is nothing to allow", aNode(internalIPs("203.0.113.9")),
			aService("web", vips("192.0.2.7")), []string{}},
		{"S26 external IPs are no VIPs", aNode(internalIPs("203.0.113.9")),
			aService("web", externalIPs("192.0.2.7"), sourceRanges("203.0.113.0/24")), []string{"203.0.113.0/24"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, order := range []string{"node first", "service first", "node in a later wave"} {
				w := newWorld(t)
				switch order {
				case "node first":
					w.change(tc.node, tc.web)
				case "service first":
					w.change(tc.web, tc.node)
				default:
					w.change(tc.web)
					w.change(tc.node)
				}
				require.Equal(t, tc.want, texts(w.mustService("web").LoadBalancerSourceRanges), order)
				require.Empty(t, w.got.checkForm())
				// The node's address is removed again, and the permission with it.
				w.change(aNode())
				require.NotContains(t, texts(w.mustService("web").LoadBalancerSourceRanges), "192.0.2.7/32")
			}
		})
	}
}

func TestTrafficPolicies(t *testing.T) {
	for _, tc := range []struct {
		name               string
		obj                *corev1.Service
		internal, external model.TrafficPolicy
		healthCheck        uint16
	}{
		{"S9 both policies are Cluster by default", aService("web", nodePort(30080)), 0, 0, 0},
		{"S9 internalTrafficPolicy Local", aService("web", internalLocal), 1, 0, 0},
		{"S9 internalTrafficPolicy Cluster, spelled out", aService("web", func(obj *corev1.Service) {
			obj.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
		}), 0, 0, 0},
		{"S9 externalTrafficPolicy Local of a NodePort service", aService("web", nodePort(30080), externalLocal), 0, 1,
			0},
		{"S9 externalTrafficPolicy Local of a NodePort service whose port has none",
			aService("web", typed(corev1.ServiceTypeNodePort), externalLocal), 0, 1, 0},
		{"S9 externalTrafficPolicy Local of a LoadBalancer service", aService("web", vips(), externalLocal), 0, 1, 0},
		{"S9 externalTrafficPolicy Local of a ClusterIP service is ignored", aService("web", externalLocal), 0, 0, 0},
		{"S9 ... even if it has a load-balancer IP",
			aService("web", vips("192.0.2.7"), typed(corev1.ServiceTypeClusterIP), externalLocal), 0, 0, 0},
		{"S9 ... but not if it has an external IP", aService("web", externalIPs("192.0.2.5"), externalLocal), 0, 1, 0},
		{"S9 ... one of the other family", aService("web", externalIPs("2001:db8::5"), externalLocal), 0, 1, 0},
		{"S9 ... an invalid one", aService("web", externalIPs("nonsense"), externalLocal), 0, 1, 0},
		{"S9 the health check of a LoadBalancer service with policy Local",
			aService("web", vips(), externalLocal, healthCheck(30000)), 0, 1, 30000},
		{"S9 no health check with policy Cluster", aService("web", vips(), healthCheck(30000)), 0, 0, 0},
		{"S9 no health check of a NodePort service",
			aService("web", nodePort(30080), externalLocal, healthCheck(30000)), 0, 1, 0},
		{"S9 no health check without a port", aService("web", vips(), externalLocal), 0, 1, 0},
		{"S9 no health check with a port out of range", aService("web", vips(), externalLocal, healthCheck(65536)), 0,
			1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc := newWorld(t, tc.obj).mustService("web")
			require.Equal(t, tc.internal, svc.InternalTrafficPolicy)
			require.Equal(t, tc.external, svc.ExternalTrafficPolicy)
			var port uint16
			if svc.HealthCheck != nil {
				port = svc.HealthCheck.NodePort
			}
			require.Equal(t, tc.healthCheck, port)
		})
	}
}

func TestSessionAffinity(t *testing.T) {
	affinity := func(config *corev1.SessionAffinityConfig) serviceOption {
		return func(obj *corev1.Service) {
			obj.Spec.SessionAffinity, obj.Spec.SessionAffinityConfig = corev1.ServiceAffinityClientIP, config
		}
	}
	seconds := func(n int32) *corev1.SessionAffinityConfig {
		return &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &n}}
	}
	for _, tc := range []struct {
		name string
		obj  *corev1.Service
		want time.Duration
	}{
		{"S32 none by default", aService("web"), 0},
		{"S32 None says none, whatever the configuration is",
			aService("web", affinity(seconds(60)),
				func(obj *corev1.Service) { obj.Spec.SessionAffinity = corev1.ServiceAffinityNone }), 0},
		{"S32 the timeout is in seconds", aService("web", affinity(seconds(60))), time.Minute},
		{"S11 no configuration means three hours", aService("web", affinity(nil)), 3 * time.Hour},
		{"S11 nor one without a client IP", aService("web", affinity(&corev1.SessionAffinityConfig{})), 3 * time.Hour},
		{"S11 nor one without a timeout", aService(
			"web", affinity(&corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{}})), 3 * time.Hour},
		{"S11 nor one with a timeout that is none", aService("web", affinity(seconds(0))), 3 * time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, newWorld(t, tc.obj).mustService("web").SessionAffinityTimeout)
		})
	}
}

func TestServicePorts(t *testing.T) {
	withNodePort := func(p corev1.ServicePort, number int32) corev1.ServicePort {
		p.NodePort = number
		return p
	}
	for _, tc := range []struct {
		name  string
		ports []corev1.ServicePort
		want  []string
	}{
		{"S4 in the order of the object", []corev1.ServicePort{tcp("web", 80), tcp("admin", 81)},
			[]string{"web 80/TCP", "admin 81/TCP"}},
		{"S4 TCP, UDP and SCTP may share a number and a name",
			[]corev1.ServicePort{tcp("dns", 53), udp("dns", 53), sctp("dns", 53)},
			[]string{"dns 53/TCP", "dns 53/UDP", "dns 53/SCTP"}},
		{"S4 the only port may have no name", []corev1.ServicePort{tcp("", 80)}, []string{"80/TCP"}},
		{"S11 no protocol means TCP", []corev1.ServicePort{{Name: "web", Port: 80}}, []string{"web 80/TCP"}},
		{"an unknown protocol is skipped, the other ports stay",
			[]corev1.ServicePort{{Name: "odd", Protocol: "DCCP", Port: 80}, tcp("web", 80)}, []string{"web 80/TCP"}},
		{"a port out of range is skipped", []corev1.ServicePort{tcp("a", 0), tcp("b", -1), tcp("c", 65536),
			tcp("d", 65535)}, []string{"d 65535/TCP"}},
		{"a name or number that is taken in the protocol is skipped",
			[]corev1.ServicePort{tcp("a", 80), tcp("a", 81), tcp("b", 80), udp("a", 80)},
			[]string{"a 80/TCP", "a 80/UDP"}},
		{"node ports", []corev1.ServicePort{withNodePort(tcp("web", 80), 30080)},
			[]string{"web 80/TCP node-port=30080"}},
		{"a node port out of range is none, the port stays",
			[]corev1.ServicePort{withNodePort(tcp("web", 80), 65536), withNodePort(tcp("b", 81), -1)},
			[]string{"web 80/TCP", "b 81/TCP"}},
		{"a service without a port", nil, []string{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, texts(newWorld(t, aService("web", ports(tc.ports...))).mustService("web").Ports))
		})
	}
}

func TestLabelsAndAnnotationsArePassedOn(t *testing.T) {
	obj := aService("web", func(obj *corev1.Service) {
		obj.Labels = map[string]string{"app": "web"}
		obj.Annotations = map[string]string{"example.com/weight": "5", corev1.LastAppliedConfigAnnotation: "{}"}
	})
	w := newWorld(t, obj)
	require.Equal(t, map[string]string{"app": "web"}, w.mustService("web").Labels)
	require.Equal(t, map[string]string{"example.com/weight": "5"}, w.mustService("web").Annotations)

	// They are copies, and a change in them counts as a change.
	obj.Labels["app"] = "changed"
	require.Equal(t, "web", w.mustService("web").Labels["app"])
	require.Equal(t, []string{"set service ns/web"}, w.change(obj))
	obj.Annotations[corev1.LastAppliedConfigAnnotation] = `{"new": true}`
	require.Empty(t, w.change(obj))
}

func TestNoMetadata(t *testing.T) {
	obj := aService("web", func(obj *corev1.Service) {
		obj.Labels, obj.Annotations = map[string]string{"app": "web"}, map[string]string{"example.com/weight": "5"}
	})
	w := newWorldWith(t, ClusterOptions{NoMetadata: true}, obj)
	require.Nil(t, w.mustService("web").Labels)
	require.Nil(t, w.mustService("web").Annotations)
	obj.Labels["app"] = "changed"
	require.Empty(t, w.change(obj))
	obj.Labels[labelServiceProxyName] = "another"
	require.Contains(t, w.change(obj), "delete service ns/web", "they still say whose service it is")
}

// TestWhichServiceItIs: a service that was deleted and created again under the same name is a different one, even if
// the deletion was missed.
func TestWhichServiceItIs(t *testing.T) {
	made := func(uid types.UID, at time.Time) serviceOption {
		return func(obj *corev1.Service) { obj.UID, obj.CreationTimestamp = uid, metav1.NewTime(at) }
	}
	w := newWorld(t, aService("web"))
	require.Empty(t, w.mustService("web").UID)
	require.True(t, w.mustService("web").Created.IsZero(), "it is not known")

	at := time.Date(2026, 11, 3, 15, 5, 9, 999, time.FixedZone("CET", 3600))
	require.Equal(t, []string{"set service ns/web"}, w.change(aService("web", made("uid-1", at))))
	require.Equal(t, "uid-1", w.mustService("web").UID)
	require.Equal(t, time.Date(2026, 11, 3, 14, 5, 9, 0, time.UTC), w.mustService("web").Created)

	require.Empty(t, w.change(aService("web", made("uid-1", at.UTC()))), "the same time")
	require.Equal(t, []string{"set service ns/web"}, w.change(aService("web", made("uid-1", at.Add(time.Second)))))
	require.Equal(t, []string{"set service ns/web"}, w.change(aService("web", made("uid-2", at.Add(time.Second)))))
	require.Empty(t, w.got.checkForm())
}

// TestBadValuesAreLogged is S5's departure from kube-proxy, and promise 8: a log line names the object and the field.
func TestBadValuesAreLogged(t *testing.T) {
	var log strings.Builder
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))
	state, err := New(klog.NewContext(t.Context(), logger),
		Options{NodeName: me, DetectLocal: DetectLocal{NodeCIDR: true}}, ClusterOptions{})
	require.NoError(t, err)
	for _, tc := range []struct {
		name  string
		event func() bool
		want  []string
	}{
		{"an invalid cluster IP", func() bool {
			return state.setService(aService("a", clusterIPs("10.0.0.1", "fd00:::1")))
		}, []string{`service="ns/a"`, `field="clusterIPs"`, `fd00:::1`}},
		{"an invalid external IP", func() bool { return state.setService(aService("b", externalIPs("192.0.2.256"))) },
			[]string{`service="ns/b"`, `field="externalIPs"`, `192.0.2.256`}},
		{"an invalid load-balancer IP", func() bool { return state.setService(aService("c", vips("192.0.2.256"))) },
			[]string{`service="ns/c"`, `field="status.loadBalancer.ingress"`, `192.0.2.256`}},
		{"an invalid source range", func() bool {
			return state.setService(
				aService("d", sourceRanges("192.0.2.0/33")))
		},
			[]string{`service="ns/d"`, `field="loadBalancerSourceRanges"`, `192.0.2.0/33`}},
		{"an invalid port", func() bool {
			return state.setService(
				aService("e", ports(tcp("web", 80), tcp("odd", 65536))))
		},
			[]string{`service="ns/e"`, `field="ports[1]"`, `65536`}},
		{"an unknown protocol", func() bool {
			return state.setService(aService("h", ports(corev1.ServicePort{Protocol: "DCCP", Port: 80})))
		},
			[]string{`service="ns/h"`, `field="ports[0]"`, `DCCP`}},
		{"a name that is taken", func() bool {
			return state.setService(
				aService("i", ports(tcp("web", 80), tcp("web", 81))))
		},
			[]string{`service="ns/i"`, `field="ports[1]"`, `web`}},
		{"an invalid node port", func() bool { return state.setService(aService("f", nodePort(65536))) },
			[]string{`service="ns/f"`, `field="ports[0]"`, `65536`}},
		{"an invalid health check port", func() bool {
			return state.setService(aService("g", vips("192.0.2.7"), externalLocal, healthCheck(65536)))
		}, []string{`service="ns/g"`, `field="healthCheckNodePort"`, `65536`}},
		{"an invalid endpoint address", func() bool {
			return state.setEndpointSlice(aSlice("web-1", ep("10.1.0.1"), ep("pod")))
		},
			[]string{`endpointSlice="ns/web-1"`, `service="web"`, `field="endpoints[1]"`, `pod`}},
		{"an endpoint without an address", func() bool {
			return state.setEndpointSlice(aSlice("web-2",
				ep("10.1.0.1", func(e *endpointObject) { e.Addresses = nil })))
		}, []string{`endpointSlice="ns/web-2"`, `field="endpoints[0]"`}},
		{"an endpoint port out of range", func() bool {
			return state.setEndpointSlice(aSlice("web-3",
				slicePorts(slicePortObject("http", corev1.ProtocolTCP, 65536))))
		}, []string{`endpointSlice="ns/web-3"`, `field="ports[0]"`, `65536`}},
		{"an unknown protocol of an endpoint port", func() bool {
			return state.setEndpointSlice(aSlice("web-4", slicePorts(slicePortObject("http", "DCCP", 80))))
		}, []string{`endpointSlice="ns/web-4"`, `field="ports[0]"`, `DCCP`}},
		{"an invalid node address", func() bool { return state.setNode(aNode(internalIPs("nowhere"), inZone("a"))) },
			[]string{`node="me"`, `field="status.addresses"`, `nowhere`}},
		{"an invalid pod CIDR", func() bool { return state.setNode(aNode(podCIDRs("10.1.0.0"), inZone("b"))) },
			[]string{`node="me"`, `field="spec.podCIDRs"`, `10.1.0.0`}},
		{"an invalid service CIDR", func() bool {
			return state.setServiceCIDR(
				aServiceCIDR("kubernetes", "10.0.0.0", "10.96.0.0/16"))
		},
			[]string{`serviceCIDR="kubernetes"`, `field="spec.cidrs"`, `10.0.0.0`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log.Reset()
			require.True(t, tc.event(), "the rest of the object counts")
			for _, part := range tc.want {
				require.Contains(t, log.String(), part)
			}
			require.Equal(t, 1, strings.Count(log.String(), "\n"), "one line:\n%s", log.String())
		})
	}
}

// TestGoodValuesAreNotLogged: legal values are not logged, even if they have no use here.
func TestGoodValuesAreNotLogged(t *testing.T) {
	var log strings.Builder
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))
	state, err := New(klog.NewContext(t.Context(), logger), Options{NodeName: me}, ClusterOptions{})
	require.NoError(t, err)
	for name, obj := range map[string]metav1.Object{
		"a service without families": aService("a", func(obj *corev1.Service) { obj.Spec.IPFamilies = nil }),
		"a service whose second IP is None": aService("b", clusterIPs("10.0.0.1", "None"),
			func(obj *corev1.Service) { obj.Spec.IPFamilies[1] = "IPv6" }),
		"a load balancer with a host name": aService("c", func(obj *corev1.Service) {
			obj.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example.com"}}
		}),
		"a load balancer that has no health check port": aService("d", vips("192.0.2.7"), externalLocal),
		"an external IP of another family":              aService("e", externalIPs("2001:db8::5")),
		"a headless service":                            aService("f", clusterIPs("None")),
		"a slice with a port without a number or a name": aSlice(
			"a", slicePorts(slicePortObject("http", "TCP", 0), discoveryv1.EndpointPort{},
				discoveryv1.EndpointPort{Name: ptr.To("http")})),
		"a slice that is ignored": aSlice("b", ofType(discoveryv1.AddressTypeFQDN),
			ep("pod.example.com")),
		"an endpoint that is not ready and not serving": aSlice("c", ep("10.1.0.1", unready)),
		"a node without addresses":                      aNode(),
		"a node with a host name": aNode(func(obj *corev1.Node) {
			obj.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "me"}}
		}),
		"a service CIDR of both families": aServiceCIDR("c", "10.0.0.0/16", "fd00::/108"),
	} {
		_, err := state.Apply(obj, false)
		require.NoError(t, err)
		require.Empty(t, log.String(), name)
	}
}

// Source ranges that contain the node's address allow all VIPs as sources, at once (S26).
func TestManyVIPsAsSources(t *testing.T) {
	const vips = 2000
	svc := benchService(1)
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	for i := range vips {
		ip := netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}).String()
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	w := newWorldWith(t, Options{NodeName: me, NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, svc)
	service := w.got.services[model.ServiceName{Namespace: svc.Namespace, Name: svc.Name}]
	assert.Len(t, service.LoadBalancerSourceRanges, 1+vips)

	ranges, node := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, w.state.node.model.IP
	allocations := testing.AllocsPerRun(5, func() { rangesWithVIPs(ranges, service.LoadBalancerIPs, node) })
	assert.Less(t, allocations, 50.0, "the list grows as a list, not by one")
	spare := append(make([]netip.Prefix, 0, 2), ranges...)
	rangesWithVIPs(spare, service.LoadBalancerIPs, node)
	assert.Zero(t, spare[:2][1], "the memory of the ranges is not written to")
}
