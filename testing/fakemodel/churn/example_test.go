package churn_test

import (
	"fmt"
	"log"

	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/churn"
)

func Example() {
	cluster, err := churn.New(churn.Options{Seed: 3, Services: 2, Endpoints: 2})
	if err != nil {
		log.Fatal(err)
	}
	for _, object := range cluster.Objects() {
		fmt.Printf("%T\n", object.Object)
	}
	for range 6 {
		step := cluster.Step()
		fmt.Printf("%s: %d changes\n", step.What, len(step.Changes))
	}
	// Output:
	// *v1.ServiceCIDR
	// *v1.Node
	// *v1.Node
	// *v1.Node
	// *v1.Service
	// *v1.EndpointSlice
	// *v1.Service
	// *v1.EndpointSlice
	// svc-0-k7fzv46w8-5wpz2 on n2 starts, svc-0-k7fzv46w8-9ds66 on n1 drains: 1 changes
	// svc-0-k7fzv46w8-9ds66 serves no more: 1 changes
	// svc-0 is scaled from 2 to 3: 1 changes
	// svc-1-m7vjc7ld5-n9pkj is not ready: 1 changes
	// svc-0-k7fzv46w8-9ds66 is gone: 1 changes
	// slice 1 of svc-0 is touched: 1 changes
}
