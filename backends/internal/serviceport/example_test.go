package serviceport_test

import (
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/serviceport"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func ExampleNode_Each() {
	e := &sink.ServiceEntry{
		Service: fm.Service("shop/web").ClusterIP("10.96.0.1").Port("http", 80).NodePort(30080).ExternalLocal().Build(),
		Endpoints: []*model.Endpoint{
			fm.Endpoint("shop/web:http/TCP", "10.244.1.5:8080").Local().Build(),
			fm.Endpoint("shop/web:http/TCP", "10.244.2.5:8080").Build(),
		},
	}
	serviceport.Node{Family: model.IPv4}.Each(e, func(p serviceport.Port) {
		for _, d := range p.Destinations {
			_, _, other := p.RoutesTo(d.Kind)
			fmt.Println(p.Name, d.Addr, d.Port, "to", p.Endpoints(other.Endpoints))
		}
	}, func(problem string, p model.PortName) { fmt.Println(p, problem) })
	// Output:
	// shop/web:http/TCP 10.96.0.1 80 to [10.244.1.5:8080 10.244.2.5:8080]
	// shop/web:http/TCP invalid IP 30080 to [10.244.1.5:8080]
}
