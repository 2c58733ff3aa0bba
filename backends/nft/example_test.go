package nft_test

import (
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A backend on a fake kernel, told about one service by hand. Without Options.Dataplane it is the real kernel.
func Example() {
	ctx := context.Background()
	kernel := nft.NewFake()
	backend, err := nft.New(ctx, nft.Options{Dataplane: kernel})
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
	for line := range strings.Lines(kernel.Dump()) {
		if strings.Contains(line, "10.96.0.10 .") || strings.Contains(line, "numgen random mod 2 ") {
			fmt.Println(strings.TrimSpace(line))
		}
	}
	// Output:
	// elements = { 10.96.0.10 . tcp . 80 comment "default/web:http/TCP" : goto cluster-2 }
	// elements = { 10.96.0.10 . tcp . 80 . 0 : 10.244.1.5 . 8080,
	// 10.96.0.10 . tcp . 80 . 1 : 10.244.2.5 . 8080 }
	// dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints
}
