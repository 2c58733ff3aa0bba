package oracle_test

import (
	"fmt"
	"log"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
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
			Routes: model.PerFamily[model.Routes]{IPv4: model.NewRoutes(model.RoutePolicy{
				ClusterIP: true, ExternalAddresses: true, External: model.TrafficPolicyLocal, DetectsLocalPods: true})},
		}},
	}}
	endpoints := []*model.Endpoint{
		{Port: port, Target: netip.MustParseAddrPort("10.244.1.5:8080"), Local: true,
			Sets: model.ClusterSet | model.LocalSet},
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
		{From: oracle.LocalPod, Source: netip.MustParseAddr("10.244.1.5"),
			Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: model.TCP},
		{From: oracle.External, Source: client, Destination: netip.MustParseAddrPort("172.18.0.2:30080"),
			Protocol: model.TCP},
		{From: oracle.External, Source: client, Destination: netip.MustParseAddrPort("10.96.0.10:443"),
			Protocol: model.TCP},
	} {
		outcome, err := o.Expect(flow)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%v\n%v\n\n", flow, outcome)
	}
	// Output:
	// local pod 10.244.1.5 -> 10.96.0.10:80/TCP
	// deliver to 10.244.1.5:8080 (source NAT) or 10.244.2.5:8080
	//     10.96.0.10:80/TCP is a cluster IP of default/web:http/TCP (S3)
	//     traffic to a cluster IP, whoever sends it: to endpoints on any node (the Cluster set) (S21)
	//     masqueraded unless the source is a pod of this node (S28)
	//     10.244.1.5 passes for a local pod (S30)
	//     endpoint 10.244.1.5:8080 is the source itself: masqueraded (S29)
	//     a client stays with its endpoint for 1h0m0s (S32)
	//
	// external 203.0.113.7 -> 172.18.0.2:30080/TCP
	// deliver to 10.244.1.5:8080
	//     172.18.0.2:30080/TCP is a node port of default/web:http/TCP (S35)
	//     external traffic from outside the node: to endpoints on this node only (the Local set) (S27)
	//     never masqueraded: the endpoint sees the client's address (S27)
	//     a client stays with its endpoint for 1h0m0s (S32)
	//
	// external 203.0.113.7 -> 10.96.0.10:443/TCP
	// reject
	//     10.96.0.10 is the cluster IP of default/web, which has no port 443/TCP (S33)
	// or not ours
	//     backends need not guard the service CIDRs (S33)
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
	// want: deliver to 10.244.1.5:8080
	//     172.18.0.2:30080/TCP is a node port of default/web:http/TCP (S35)
	//     external traffic from outside the node: to endpoints on this node only (the Local set) (S27)
	//     never masqueraded: the endpoint sees the client's address (S27)
	//     a client stays with its endpoint for 1h0m0s (S32)
}

// A person asks as kubectl serviceproxy flow does.
func ExampleOracle_Ask() {
	answer, err := exampleOracle().Ask("pod 10.244.1.9 -> 10.96.0.10:80/TCP")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer)
	// Output:
	// local pod 10.244.1.9 -> 10.96.0.10:80/TCP
	//   note: 10.244.1.9 is unknown: assuming a pod of this node; say "remote pod" if it is not
	//   deliver
	//     10.244.1.5:8080  keeps the source address
	//     10.244.2.5:8080  keeps the source address
	//   because
	//     10.96.0.10:80/TCP is a cluster IP of default/web:http/TCP (S3)
	//     traffic to a cluster IP, whoever sends it: to endpoints on any node (the Cluster set) (S21)
	//     masqueraded unless the source is a pod of this node (S28)
	//     10.244.1.9 passes for a local pod (S30)
	//     a client stays with its endpoint for 1h0m0s (S32)
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
	fmt.Println(outcome.After(oracle.Connection{Endpoint: last, Ago: 59 * time.Minute}).Endpoints)
	fmt.Println(outcome.After(oracle.Connection{Endpoint: last, Ago: 61 * time.Minute}).Endpoints)
	// Output:
	// [10.244.2.5:8080]
	// [10.244.1.5:8080 10.244.2.5:8080]
}
