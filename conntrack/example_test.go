package conntrack_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// zone is a table of the program's own: one conntrack zone of a virtual switch, for example.
type zone struct{ flows []conntrack.Flow }

// DeleteUDP implements conntrack.Table. A table that cannot select by the selections checks every flow of the family.
func (z *zone) DeleteUDP(
	_ context.Context, family model.Family, _ []conntrack.Selection, stale func(conntrack.Flow) bool,
) (deleted int, err error) {
	before := len(z.flows)
	z.flows = slices.DeleteFunc(z.flows, func(f conntrack.Flow) bool {
		return model.FamilyOf(f.Destination.Addr()) == family && stale(f)
	})
	return before - len(z.flows), nil
}

// A backend gets conntrack clean-up by being wrapped.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	backend := sink.NewFullState(func(context.Context, *sink.Snapshot) error { return nil }) // yours
	// A client of DNS goes on sending to a pod that is gone.
	client := netip.MustParseAddrPort("10.244.0.9:40000")
	dns := netip.MustParseAddrPort("10.96.0.10:53")
	table := &zone{[]conntrack.Flow{{Source: client, Destination: dns,
		ReplySource: netip.MustParseAddrPort("10.244.0.5:53"), ReplyDestination: client}}}

	s := conntrack.Wrap(ctx, backend, conntrack.Options{Table: table}) // without Table: the kernel's

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
	fmt.Println("before:", table.flows)
	if err := s.Sync(ctx); err != nil {
		fmt.Println(err)
	}
	s.Wait() // a proxy need not wait
	fmt.Println("after:", table.flows)
	// Output:
	// before: [10.244.0.9:40000 -> 10.96.0.10:53 (10.244.0.5:53 -> 10.244.0.9:40000)]
	// after: []
}
