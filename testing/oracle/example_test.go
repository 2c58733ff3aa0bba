package oracle_test

import (
	"fmt"
	"log"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/oracle"
)

// exampleOracle knows one service with a cluster IP, a node port and two endpoints, one of them on this node.
func exampleOracle() *oracle.Oracle {
	web := model.ServiceName{Namespace: "default", Name: "web"}
	port := model.PortName{Service: web, Port: "http", Protocol: model.TCP}
	services := []*model.Service{{
		Name:                   web,
		ClusterIPs:             []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		SessionAffinityTimeout: time.Hour,
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080,
			RoutesIPv4: model.NewRoutes(model.RoutePolicy{
				ClusterIP: true, ExternalAddresses: true, External: model.TrafficPolicyLocal, DetectsLocalPods: true}),
		}},
	}}
	endpoints := []*model.Endpoint{
		{Port: port, Target: netip.MustParseAddrPort("10.244.1.5:8080"), Local: true, Sets: model.ClusterSet | model.LocalSet},
		{Port: port, Target: netip.MustParseAddrPort("10.244.2.5:8080"), Sets: model.ClusterSet},
	}
	node := &model.Node{
		Name:      "n1",
		IPs:       []netip.Addr{netip.MustParseAddr("172.18.0.2")},
		LocalPods: model.LocalPods{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
	}
	o, err := oracle.New(oracle.Collect(node, slices.Values(services), slices.Values(endpoints)), oracle.Config{})
	if err != nil {
		log.Fatal(err)
	}
	return o
}

func Example() {
	o := exampleOracle()
	client := netip.MustParseAddr("203.0.113.7")
	for _, flow := range []oracle.Flow{
		{From: oracle.LocalPod, Source: netip.MustParseAddr("10.244.1.5"), Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: model.TCP},
		{From: oracle.External, Source: client, Destination: netip.MustParseAddrPort("172.18.0.2:30080"), Protocol: model.TCP},
		{From: oracle.External, Source: client, Destination: netip.MustParseAddrPort("10.96.0.10:443"), Protocol: model.TCP},
	} {
		outcome, err := o.Expect(flow)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%v\n%v\n\n", flow, outcome)
	}
	// Output:
	// local pod 10.244.1.5 -> 10.96.0.10:80/TCP
	// deliver to 10.244.1.5:8080 (source NAT) or 10.244.2.5:8080: cluster IP of default/web:http/TCP, from anywhere (S28): Cluster, masquerade UnlessLocalPod, if empty Reject, an endpoint is the source itself (S29)
	//
	// external 203.0.113.7 -> 172.18.0.2:30080/TCP
	// deliver to 10.244.1.5:8080: node port of default/web:http/TCP, from outside the node (S27): Local, masquerade Never, if empty Drop
	//
	// external 203.0.113.7 -> 10.96.0.10:443/TCP
	// reject: 10.96.0.10 is the cluster IP of default/web, which has no port 443/TCP (S33)
	// or not ours: backends need not guard the service CIDRs (S33)
}

// A test compares what it saw with what must happen.
func ExampleOracle_Check() {
	o := exampleOracle()
	outcome, err := o.Expect(oracle.Flow{From: oracle.External, Source: netip.MustParseAddr("203.0.113.7"),
		Destination: netip.MustParseAddrPort("172.18.0.2:30080"), Protocol: model.TCP})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(o.Check(outcome, oracle.Observation{Verdict: oracle.Deliver,
		Endpoint: netip.MustParseAddrPort("10.244.1.5:8080"), Source: netip.MustParseAddr("172.18.0.2")}))
	// Output:
	// external 203.0.113.7 -> 172.18.0.2:30080/TCP
	// seen: delivered to 10.244.1.5:8080, which saw 172.18.0.2
	// want: deliver to 10.244.1.5:8080: node port of default/web:http/TCP, from outside the node (S27): Local, masquerade Never, if empty Drop
}

// Session affinity narrows the outcome down to the endpoint of an earlier connection, for as long as it lasts.
func ExampleOutcome_After() {
	o := exampleOracle()
	outcome, err := o.Expect(oracle.Flow{From: oracle.LocalPod, Source: netip.MustParseAddr("10.244.1.9"),
		Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: model.TCP})
	if err != nil {
		log.Fatal(err)
	}
	last := netip.MustParseAddrPort("10.244.2.5:8080")
	fmt.Println(outcome.After(oracle.Contact{Endpoint: last, Ago: 59 * time.Minute}).Endpoints)
	fmt.Println(outcome.After(oracle.Contact{Endpoint: last, Ago: 61 * time.Minute}).Endpoints)
	// Output:
	// [10.244.2.5:8080]
	// [10.244.1.5:8080 10.244.2.5:8080]
}
