package brain_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"testing/fstest"
	"time"

	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// A brain lists the cluster before it serves clients. The example of package remote has a brain and a node.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	source, err := watch.NewFilesFS(fstest.MapFS{"web.yaml": {Data: []byte(
		"{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web}, spec: {clusterIP: 10.96.0.10}}")}})
	if err != nil {
		log.Fatal(err)
	}
	server, err := brain.New(ctx, brain.Options{Source: source})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- server.Run(ctx) }()
	for server.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	status := httptest.NewRecorder()
	server.StatusHandler().ServeHTTP(status, httptest.NewRequest(http.MethodGet, "/status", nil))
	fmt.Println(status.Code, len(server.Clients()))
	cancel()
	fmt.Println(<-ended)
	// Output:
	// 200 0
	// <nil>
}
