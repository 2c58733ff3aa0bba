package health_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// The health check of a Service, on the node's addresses.
func ExampleServices() {
	ctx := context.Background()
	backend := sink.NewFullState(func(context.Context, *sink.Snapshot) error { return nil }) // yours
	services := health.NewServices(backend, health.ServicesOptions{
		Addresses: func() nodeaddr.Addresses { // or a nodeaddr.Tracker's
			return nodeaddr.Addresses{IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
		},
	})
	defer services.Close()
	services.SetService(&model.Service{
		Name:        model.ServiceName{Namespace: "default", Name: "web"},
		ClusterIPs:  []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		HealthCheck: &model.HealthCheck{NodePort: 32767, LocalEndpoints: model.PerFamily[int]{IPv4: 2}},
	})
	if err := services.Sync(ctx); err != nil {
		fmt.Println(err)
		return
	}
	request, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:32767/", nil)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	fmt.Println(response.StatusCode)
	fmt.Println(string(body))
	// Output:
	// 200
	// {
	// 	"service": {
	// 		"namespace": "default",
	// 		"name": "web"
	// 	},
	// 	"localEndpoints": 2,
	// 	"serviceProxyHealthy": true
	// }
}
