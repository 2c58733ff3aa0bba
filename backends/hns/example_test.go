package hns_test

import (
	"context"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/backends/hns"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A backend on a model of HNS. Leave out Dataplane for the one of the machine.
func Example() {
	fake := hns.NewFake("cbr0", "L2Bridge")
	b, err := hns.New(context.Background(), hns.Options{Network: "cbr0", Dataplane: fake})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	b.SetNode(fm.Node("win-1").IP("192.0.2.10").Build())
	b.SetService(fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build())
	b.SetEndpoint(fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build())
	b.SetEndpoint(fm.Endpoint("default/web:http/TCP", "10.244.2.7:8080").Build())
	if err := b.Sync(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(fake.Dump())
	// Output:
	// remote endpoint 10.244.2.7 02-11-0a-f4-02-07 named kube-proxy-lib 10.244.2.7
	// remote endpoint 10.244.3.5 02-11-0a-f4-03-05 named kube-proxy-lib 10.244.3.5
	// load balancer 10.96.0.10:80/TCP -> 8080 of 10.244.2.7, 10.244.3.5
}
