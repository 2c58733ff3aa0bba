package kube

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

// TestObjects compares what builders make with the same object as YAML.
func TestObjects(t *testing.T) {
	tests := []struct {
		name string
		got  any
		want string
	}{
		{"a service has a cluster IP and a port by default", Service("web").Build(), `
apiVersion: v1
kind: Service
metadata: {namespace: default, name: web}
spec:
  type: ClusterIP
  clusterIP: ` + DefaultClusterIP("default", "web") + `
  clusterIPs: [` + DefaultClusterIP("default", "web") + `]
  ipFamilies: [IPv4]
  ipFamilyPolicy: SingleStack
  internalTrafficPolicy: Cluster
  sessionAffinity: None
  ports: [{port: 80, targetPort: 80, protocol: TCP}]
status: {loadBalancer: {}}`},
		{"a service with everything", Service("ns/web").UID("uid-1").Created(time.Unix(1000, 5)).
			Label("app", "web").Annotation("note", "x").ClusterIP("fd96::10", "10.96.0.10").
			ExternalIP("198.51.100.10").LoadBalancerIP("198.51.100.20").SourceRange("192.0.2.0/24").
			Port("http", 80).NodePort(30080).UDPPort("dns", 53).SCTPPort("sig", 54).NodePort(30054).
			InternalLocal().ExternalLocal().HealthCheckNodePort(31000).Affinity(60).Build(), `
apiVersion: v1
kind: Service
metadata: {namespace: ns, name: web, uid: uid-1, creationTimestamp: "1970-01-01T00:16:40Z",
  labels: {app: web}, annotations: {note: x}}
spec:
  type: LoadBalancer
  clusterIP: fd96::10
  clusterIPs: [fd96::10, 10.96.0.10]
  ipFamilies: [IPv6, IPv4]
  ipFamilyPolicy: RequireDualStack
  externalIPs: [198.51.100.10]
  loadBalancerSourceRanges: [192.0.2.0/24]
  internalTrafficPolicy: Local
  externalTrafficPolicy: Local
  healthCheckNodePort: 31000
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  ports:
  - {name: http, port: 80, targetPort: 80, protocol: TCP, nodePort: 30080}
  - {name: dns, port: 53, targetPort: 53, protocol: UDP}
  - {name: sig, port: 54, targetPort: 54, protocol: SCTP, nodePort: 30054}
status:
  loadBalancer:
    ingress: [{ip: 198.51.100.20, ipMode: VIP}]`},
		{"a service with external IPs has an external traffic policy", Service("web").ClusterIP("10.96.0.10").
			ExternalIP("198.51.100.10").NodePort(30080).Type(corev1.ServiceTypeClusterIP).Build(), `
apiVersion: v1
kind: Service
metadata: {namespace: default, name: web}
spec:
  type: ClusterIP
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  externalIPs: [198.51.100.10]
  ipFamilies: [IPv4]
  ipFamilyPolicy: SingleStack
  internalTrafficPolicy: Cluster
  externalTrafficPolicy: Cluster
  sessionAffinity: None
  ports: [{port: 80, targetPort: 80, protocol: TCP, nodePort: 30080}]
status: {loadBalancer: {}}`},
		{"an ExternalName service has no cluster IP", Service("web").Type(corev1.ServiceTypeExternalName).Build(), `
apiVersion: v1
kind: Service
metadata: {namespace: default, name: web}
spec:
  type: ExternalName
  ipFamilyPolicy: SingleStack
  internalTrafficPolicy: Cluster
  sessionAffinity: None
  ports: [{port: 80, targetPort: 80, protocol: TCP}]
status: {loadBalancer: {}}`},
		{"a slice has a name, a type and a port by default", EndpointSlice("ns/web").Build(), `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: ns, name: web-ipv4, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: null
ports: [{name: "", port: 8080, protocol: TCP}]`},
		{"a slice has the type of its endpoints", EndpointSlice("web").Label("x", "y").Annotation("a", "b").
			Endpoint("fd44::5").Pod("web-1").ForNodes("n1", "n2").
			Endpoint("fd44::6").NotReady().Endpoint("fd44::7").NotServing().
			Port("http", 80).UDPPort("dns", 53).SCTPPort("sig", 54).Build(), `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: web-ipv6, labels: {kubernetes.io/service-name: web, x: y}, annotations: {a: b}}
addressType: IPv6
endpoints:
- addresses: [fd44::5]
  conditions: {ready: true, serving: true, terminating: false}
  targetRef: {kind: Pod, namespace: default, name: web-1}
  hints: {forNodes: [{name: n1}, {name: n2}]}
- addresses: [fd44::6]
  conditions: {ready: false, serving: false, terminating: false}
- addresses: [fd44::7]
  conditions: {ready: false, serving: false, terminating: true}
ports:
- {name: http, port: 80, protocol: TCP}
- {name: dns, port: 53, protocol: UDP}
- {name: sig, port: 54, protocol: SCTP}`},
		{"a slice is called what it is told", EndpointSlice("web").Name("abc").
			AddressType(discoveryv1.AddressTypeFQDN).OnNode("nobody").Build(), `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: abc, labels: {kubernetes.io/service-name: web}}
addressType: FQDN
endpoints: null
ports: [{name: "", port: 8080, protocol: TCP}]`},
		{"a node", Node("n1").Zone("a").Label("x", "y").InternalIP("172.18.0.2", "fd18::2").
			PodCIDR("10.244.1.0/24", "fd44:1::/64").Taint("gone").Build(), `
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/hostname: n1, topology.kubernetes.io/zone: a, x: "y"}}
spec:
  podCIDR: 10.244.1.0/24
  podCIDRs: [10.244.1.0/24, "fd44:1::/64"]
  taints: [{key: gone, effect: NoSchedule}]
status:
  addresses: [{type: InternalIP, address: 172.18.0.2}, {type: InternalIP, address: "fd18::2"}]
  daemonEndpoints: {kubeletEndpoint: {Port: 0}}
  nodeInfo: {architecture: "", bootID: "", containerRuntimeVersion: "", kernelVersion: "", kubeProxyVersion: "",
    kubeletVersion: "", machineID: "", operatingSystem: "", osImage: "", systemUUID: ""}`},
		{"a service CIDR", ServiceCIDR("kubernetes", "10.96.0.0/16", "fd96::/108"), `
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16, "fd96::/108"]}
status: {}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := yaml.Marshal(tt.got)
			require.NoError(t, err)
			assert.YAMLEq(t, tt.want, string(got))
		})
	}
}

func TestBuildReturnsANewObject(t *testing.T) {
	service := Service("web").Label("a", "b").Port("http", 80)
	before := service.Build()
	after := service.Label("a", "c").NodePort(30080).Build()
	assert.Equal(t, "b", before.Labels["a"])
	assert.Zero(t, before.Spec.Ports[0].NodePort)
	assert.Equal(t, "c", after.Labels["a"])
	assert.EqualValues(t, 30080, after.Spec.Ports[0].NodePort)

	slice := EndpointSlice("web").Endpoint("10.244.1.5")
	ready := slice.Build()
	gone := slice.NotServing().Build()
	assert.True(t, *ready.Endpoints[0].Conditions.Ready)
	assert.False(t, *gone.Endpoints[0].Conditions.Ready)

	node := Node("n1").Zone("a")
	a := node.Build()
	b := node.Zone("b").Build()
	assert.Equal(t, "a", a.Labels[corev1.LabelTopologyZone])
	assert.Equal(t, "b", b.Labels[corev1.LabelTopologyZone])
}

func TestDefaultClusterIPs(t *testing.T) {
	assert.Equal(t, DefaultClusterIP("a", "b"), DefaultClusterIP("a", "b"))
	assert.NotEqual(t, DefaultClusterIP("a", "b"), DefaultClusterIP("b", "a"))
}
