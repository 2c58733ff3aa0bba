package remote_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"
	"testing/fstest"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

const objects = `
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.1.5], nodeName: node-1}, {addresses: [10.244.2.5], nodeName: node-2}]
`

// A brain and a node, on a Unix socket. On a network both get TLS: brain.ServeOptions.TLS and Options.TLS.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "brain")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	target := "unix://" + filepath.Join(dir, "brain.sock")

	// The brain.
	source, err := watch.NewFilesFS(fstest.MapFS{"shop.yaml": {Data: []byte(objects)}})
	if err != nil {
		log.Fatal(err)
	}
	server, err := brain.New(ctx, brain.Options{Source: source})
	if err != nil {
		log.Fatal(err)
	}
	listener, err := brain.Listen(ctx, target, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Run(ctx) })
	wg.Go(func() { _ = server.Serve(ctx, listener, brain.ServeOptions{}) })

	// The node.
	feed, err := remote.NewFeed(remote.Options{
		Targets: []string{target},
		State:   localstate.Options{NodeName: "node-1"},
	})
	if err != nil {
		log.Fatal(err)
	}
	err = kubeproxy.Run(ctx, kubeproxy.Options{
		Feed: feed,
		Sink: sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
			for service := range s.Services() {
				fmt.Println(service.Service.Name, service.Service.ClusterIPs)
				for _, endpoint := range service.Endpoints {
					fmt.Println(" ", endpoint.Target, "local:", endpoint.Local)
				}
			}
			cancel() // a real program would go on
			return nil
		}),
	})
	wg.Wait()
	fmt.Println(err)
	// Output:
	// shop/web [10.96.0.10]
	//   10.244.1.5:8080 local: true
	//   10.244.2.5:8080 local: false
	// <nil>
}
