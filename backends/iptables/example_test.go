package iptables_test

import (
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A backend on an iptables in memory, to which the example describes one service. Without Options.Dataplanes it uses
// the machine's iptables.
func Example() {
	ctx := context.Background()
	fake := iptables.NewFake(model.IPv4)
	backend, err := iptables.New(ctx, iptables.Options{Dataplanes: []iptables.Dataplane{fake}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer backend.Close()

	backend.SetNode(fakemodel.Node("n1").IP("192.0.2.10").Build())
	backend.SetService(fakemodel.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build())
	backend.SetEndpoint(fakemodel.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Build())
	backend.SetEndpoint(fakemodel.Endpoint("default/web:http/TCP", "10.244.2.5:8080").Build())
	if err := backend.Sync(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for line := range strings.Lines(fake.Dump()) {
		if strings.Contains(line, "10.96.0.10") {
			fmt.Print(line)
		}
	}
	// Output:
	// -A KPL-TCP -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -m comment --comment "default/web:http" -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.244.1.5:8080
	// -A KPL-TCP -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.2.5:8080
}
