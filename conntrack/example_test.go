package conntrack_test

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// A backend gets conntrack clean-up by being wrapped.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	backend := sink.NewFullState(func(context.Context, *sink.Snapshot) error { return nil }) // yours
	// leave it out for the kernel's
	table := &conntrack.Fake{}

	s := conntrack.Wrap(ctx, backend, conntrack.Options{Table: table})

	// A client of DNS goes on sending to a pod that is gone.
	client := netip.MustParseAddrPort("10.244.0.9:40000")
	dns := netip.MustParseAddrPort("10.96.0.10:53")
	table.Add(conntrack.Flow{Source: client, Destination: dns, ReplySource: netip.MustParseAddrPort("10.244.0.5:53"),
		ReplyDestination: client})

	service, err := model.NewService(model.Service{
		Name:       model.ServiceName{Namespace: "kube-system", Name: "kube-dns"},
		ClusterIPs: []netip.Addr{dns.Addr()},
		Ports:      []model.ServicePort{{Name: "dns", Protocol: model.UDP, Port: dns.Port()}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	s.SetService(service)
	s.SetEndpoint(&model.Endpoint{
		Port: service.PortName(service.Ports[0]), Target: netip.MustParseAddrPort("10.244.0.6:53"),
		Sets: model.ClusterSet, Ready: true, Serving: true,
	})
	fmt.Println("before:", table.Flows())
	if err := s.Sync(ctx); err != nil {
		fmt.Println(err)
	}
	s.Wait() // a proxy need not wait
	fmt.Println("after:", table.Flows())
	// Output:
	// before: [10.244.0.9:40000 -> 10.96.0.10:53 (10.244.0.5:53 -> 10.244.0.9:40000)]
	// after: []
}
