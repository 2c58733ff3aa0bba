package frontend_test

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// A backend that prints what it would tell its dataplane.
func Example() {
	table, err := frontend.New(frontend.Options{Families: []model.Family{model.IPv4}, Apply: apply})
	if err != nil {
		fmt.Println(err)
		return
	}
	web := model.ServiceName{Namespace: "default", Name: "web"}
	port := model.PortName{Service: web, Port: "http", Protocol: model.TCP}
	pod := func(address string) *model.Endpoint {
		return &model.Endpoint{Port: port, Target: netip.MustParseAddrPort(address), Sets: model.ClusterSet}
	}
	service, err := model.NewService(model.Service{
		Name:       web,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	// The calls of the sink, as kubeproxy.Run makes them.
	ctx := context.Background()
	table.SetService(service)
	table.SetEndpoint(pod("10.1.0.1:8080"))
	table.SetEndpoint(pod("10.1.0.2:8080"))
	fmt.Println(table.Sync(ctx))

	table.DeleteEndpoint(pod("10.1.0.1:8080").Key())
	table.SetEndpoint(pod("10.1.0.3:8080"))
	fmt.Println(table.Sync(ctx))
	// Output:
	// frontend 10.96.0.10:80/TCP of default/web:http/TCP
	//   slot 0 of 2: 10.1.0.1:8080
	//   slot 1 of 2: 10.1.0.2:8080
	// <nil>
	//   slot 0 of 2: 10.1.0.3:8080
	// <nil>
}

func apply(_ context.Context, c *frontend.Changes) error {
	for p := range c.Ports() {
		for fr := range p.FrontendChanges() {
			if fr.After != nil {
				fmt.Println("frontend", fr.After.Key, "of", p.After.Name)
			}
		}
		for _, e := range p.EndpointChanges(model.ClusterSet) {
			if e.After != nil {
				fmt.Printf("  slot %d of %d: %v\n", e.Slot, p.After.Size(model.ClusterSet), e.After.Target)
			}
		}
	}
	return nil
}
