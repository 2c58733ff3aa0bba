package page_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/page"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// A program puts the page between what feeds its backend and the backend, and mounts it.
func Example() {
	var backend sink.Sink = sink.Tee() // stands for yours
	p := page.New(page.Options{})
	s := p.Sink(backend) // to feed instead of the backend: as kubeproxy.Options.Sink, say
	mux := http.NewServeMux()
	mux.Handle("/page/", http.StripPrefix("/page", p))
	server := httptest.NewServer(mux) // a program listens on a loopback address
	defer server.Close()

	web := &model.Service{
		Name:       model.ServiceName{Namespace: "shop", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80,
			Routes: model.PerFamily[model.Routes]{
				IPv4: model.NewRoutes(model.RoutePolicy{ClusterIP: true, NoEndpoints: true})}}},
	}
	s.(sink.NodeSetter).SetNode(&model.Node{Name: "node-1"})
	s.SetService(web)
	if err := s.Sync(context.Background()); err != nil {
		log.Fatal(err)
	}

	for _, path := range []string{
		"/page/api/services?problems=true",
		"/page/api/flow?q=" + url.QueryEscape("outside 203.0.113.7 -> 10.96.0.10:80"),
	} {
		response, err := http.Get(server.URL + path)
		if err != nil {
			log.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%.100s ...\n", body)
	}
	// Output:
	// {"revision":1,"total":1,"offset":0,"services":[{"name":{"namespace":"shop","name":"web"},"clusterIPs ...
	// {"outcome":{"flow":{"from":"external","source":"203.0.113.7","destination":"10.96.0.10:80","protocol ...
}
