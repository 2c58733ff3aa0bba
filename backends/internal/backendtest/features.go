package backendtest

import (
	"time"

	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// EveryFeature is a cluster in which every kind of rule is needed.
func EveryFeature() []any {
	return []any{
		Node(),
		fm.Service("default/web").DetectsLocalPods().ClusterIP("10.96.0.10", "fd00:96::10").Port("http", 80).Build(),
		fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Local().Build(),
		fm.Endpoint("default/web:http/TCP", "10.244.2.5:8080").Build(),
		fm.Endpoint("default/web:http/TCP", "[fd00:244:1::5]:8080").Local().Build(),

		fm.Service("default/dns").DetectsLocalPods().ClusterIP("10.96.0.53").UDPPort("dns", 53).InternalLocal().Build(),
		fm.Endpoint("default/dns:dns/UDP", "10.244.1.53:53").Local().Build(),

		fm.Service("default/gone").DetectsLocalPods().ClusterIP("10.96.0.11").Port("http", 80).NoEndpoints().Build(),
		fm.Service("default/elsewhere").DetectsLocalPods().ClusterIP("10.96.0.12").Port("http", 80).InternalLocal().
			Build(),

		fm.Service("shop/front").DetectsLocalPods().ClusterIP("10.96.1.1").Port("https", 443).NodePort(30443).
			ExternalIP("198.51.100.1").LoadBalancerIP("203.0.113.1").
			SourceRange("203.0.113.0/25", "203.0.113.64/26", "198.51.100.0/24").Build(),
		fm.Endpoint("shop/front:https/TCP", "10.244.2.7:8443").Build(),
		fm.Endpoint("shop/front:https/TCP", "10.244.3.7:8443").Build(),

		fm.Service("shop/local").DetectsLocalPods().ClusterIP("10.96.1.2").Port("http", 80).NodePort(30080).
			LoadBalancerIP("203.0.113.2").ExternalLocal().HealthCheck(32100, 1, 0).Build(),
		fm.Endpoint("shop/local:http/TCP", "10.244.1.8:80").Local().Build(),
		fm.Endpoint("shop/local:http/TCP", "10.244.2.8:80").Build(),

		fm.Service("shop/remote").DetectsLocalPods().ClusterIP("10.96.1.4").Port("http", 80).NodePort(30082).
			LoadBalancerIP("203.0.113.4").ExternalLocal().Build(),
		fm.Endpoint("shop/remote:http/TCP", "10.244.2.10:80").Build(),
		fm.Endpoint("shop/remote:http/TCP", "10.244.3.10:80").Build(),

		fm.Service("shop/sticky").DetectsLocalPods().ClusterIP("10.96.1.3", "fd00:96::3").Port("http", 80).
			NodePort(30081).
			ExternalLocal().Affinity(3 * time.Hour).Build(),
		fm.Endpoint("shop/sticky:http/TCP", "10.244.1.9:80").Local().Build(),
		fm.Endpoint("shop/sticky:http/TCP", "10.244.2.9:80").Build(),
		fm.Endpoint("shop/sticky:http/TCP", "[fd00:244:2::9]:80").Build(),

		fm.Service("voip/sip").DetectsLocalPods().ClusterIP("10.96.2.1").SCTPPort("sip", 5060).Build(),
		fm.Endpoint("voip/sip:sip/SCTP", "10.244.2.20:5060").Build(),
	}
}
