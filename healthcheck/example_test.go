package healthcheck_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/healthcheck"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// The proxy's own health, as a run keeps it.
func ExampleProxy() {
	var health kubeproxy.Health // goes into kubeproxy.Options.Health, too
	proxy := healthcheck.NewProxy(healthcheck.ProxyOptions{
		Family: func(f model.Family) healthcheck.FamilyHealth { return healthcheck.FamilyHealth(health.Family(f)) },
	})
	mux := http.NewServeMux()
	mux.Handle("/healthz", proxy.Healthz())
	mux.Handle("/livez", proxy.Livez())

	proxy.SetNode(&model.Node{Name: "node-1", NotEligible: true}) // a sink does that: sink.Tee(backend, proxy.Sink())
	for _, path := range []string{"/healthz", "/livez"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /healthz 503
	// /livez 200
}

// The health check of a Service, on the node's addresses.
func ExampleServices() {
	ctx := context.Background()
	backend := sink.NewFullState(func(context.Context, *sink.Snapshot) error { return nil }) // yours
	services := healthcheck.NewServices(backend, healthcheck.ServicesOptions{
		Addresses: func() nodeaddr.Addresses { // or a nodeaddr.Tracker's
			return nodeaddr.Addresses{IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
		},
	})
	defer services.Close()
	services.SetService(&model.Service{
		Name:        model.ServiceName{Namespace: "default", Name: "web"},
		ClusterIPs:  []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		HealthCheck: &model.HealthCheck{NodePort: 32767, LocalEndpointsIPv4: 2},
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
