package model_test

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// A service and an endpoint, built by a program. The routes follow from the policies.
func ExampleNewService() {
	web := model.ServiceName{Namespace: "default", Name: "web"}
	svc, err := model.NewService(model.Service{
		Name:                  web,
		ClusterIPs:            []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		ExternalTrafficPolicy: model.TrafficPolicyLocal,
		Ports:                 []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ep, err := model.NewEndpoint(model.Endpoint{
		Port:   svc.PortName(svc.Ports[0]),
		Target: netip.MustParseAddrPort("192.168.0.2:8080"),
		Node:   "node-1", Local: true, Ready: true, Serving: true,
		Sets: model.ClusterSet | model.LocalSet,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(svc)
	fmt.Println(ep)
	// Output:
	// service default/web cluster-ips=10.0.0.1 external=Local
	//   http 80/TCP node-port=30080
	//     IPv4 cluster IP: Cluster, masquerade Never, if empty Reject
	//     IPv4 external: Local, masquerade Never, if empty Drop
	//     IPv4 external from local pod: Local, masquerade Never, if empty Drop
	//     IPv4 external from node: Cluster, masquerade Always, if empty Reject
	// endpoint default/web:http/TCP -> 192.168.0.2:8080 sets=Cluster,Local node=node-1 local
}

// A port behind a load balancer, with externalTrafficPolicy Local, on a node that knows its own pods.
func ExampleNewRoutes() {
	routes := model.NewRoutes(model.RoutePolicy{
		External:          model.TrafficPolicyLocal,
		ClusterIP:         true,
		ExternalAddresses: true,
		DetectsLocalPods:  true,
	})
	fmt.Println("to the cluster IP:", routes.ClusterIP)
	fmt.Println("from outside:     ", routes.External)
	fmt.Println("from a local pod: ", routes.ExternalFromPod)
	fmt.Println("from the node:    ", routes.ExternalFromNode)
	// Output:
	// to the cluster IP: Cluster, masquerade UnlessLocalPod, if empty Reject
	// from outside:      Local, masquerade Never, if empty Drop
	// from a local pod:  Cluster, masquerade Never, if empty Reject
	// from the node:     Cluster, masquerade Always, if empty Reject
}

// All errors are reported at once.
func ExampleNewService_errors() {
	_, err := model.NewService(model.Service{
		Name:        model.ServiceName{Namespace: "default", Name: "web"},
		ClusterIPs:  []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		ExternalIPs: []netip.Addr{netip.MustParseAddr("2001:db8::1")},
		Ports: []model.ServicePort{
			{Name: "http", Protocol: model.TCP, Port: 80},
			{Name: "metrics", Protocol: model.TCP, Port: 80},
			{Name: "dns"},
		},
	})
	fmt.Println(err)
	// Output:
	// service default/web: externalIPs: 2001:db8::1, but there is no IPv6 cluster IP
	// service default/web: ports[1].port: 80/TCP is that of ports[0]
	// service default/web: ports[2].protocol: unknown protocol: Protocol(0)
	// service default/web: ports[2].port: is 0
}
