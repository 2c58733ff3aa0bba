package dataplane_test

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// A load balancer with one endpoint, in the model of HNS, and what happens to a packet.
func Example() {
	ctx := context.Background()
	fake := dataplane.NewFake()
	fake.SetNetwork(dataplane.Network{Name: "cbr0", Type: "L2Bridge"}, false)
	pod := fake.AddEndpoint("cbr0", dataplane.Endpoint{IPs: []netip.Addr{netip.MustParseAddr("10.244.1.5")},
		MAC: "00-15-5d-01-02-03"})

	var hns dataplane.Interface = fake // or NewHNS, on Windows
	_, err := hns.CreateLoadBalancer(ctx, dataplane.LoadBalancer{
		Key: dataplane.Key{Family: model.IPv4, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80,
			Protocol: model.TCP},
		TargetPort: 8080, Endpoints: []string{pod},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(fake.Dump())
	packet := dataplane.Packet{Source: netip.MustParseAddrPort("10.244.1.9:40000"),
		Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: model.TCP}
	fmt.Println(fake.Forward(packet, nil).Endpoint)
	// Output:
	// local endpoint 10.244.1.5 00-15-5d-01-02-03
	// load balancer 10.96.0.10:80/TCP -> 8080 of 10.244.1.5
	// 10.244.1.5:8080
}
