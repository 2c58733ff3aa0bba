package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// A virtual server with one real server, in the model of the kernel.
func Example() {
	ctx := context.Background()
	var kernel dataplane.Interface = dataplane.NewFake() // or NewKernel
	key := dataplane.ServerKey{Family: model.IPv4, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80,
		Protocol: model.TCP}
	server := dataplane.Server{ServerKey: key, Scheduler: "rr", Flags: dataplane.Owned}
	pod := dataplane.Destination{Target: netip.MustParseAddrPort("10.244.1.5:8080"), Weight: 1}
	if err := errors.Join(kernel.AddServer(ctx, server), kernel.AddDestination(ctx, key, pod)); err != nil {
		fmt.Println(err)
		return
	}
	list, err := kernel.Destinations(ctx, key)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(dataplane.Text(server, list))
	fmt.Println(errors.Is(kernel.AddServer(ctx, server), syscall.EEXIST))
	// Output:
	// -A -t 10.96.0.10:80 -s rr -b flag-3
	// -a -t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 1
	// true
}
