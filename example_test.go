package kubeproxy_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/health"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// program is what a backend does: here it prints, yours writes rules.
func program(ctx context.Context, s *sink.Snapshot) error {
	for entry := range s.Services() {
		for _, port := range entry.Service.Ports {
			route := port.Routes(model.IPv4).ClusterIP
			fmt.Printf("%v port %v: %v\n", entry.Service.Name, port, route)
			for e := range entry.SetEndpoints(port.Name, port.Protocol, model.IPv4, route.Endpoints) {
				fmt.Println("  balance to", e.Target)
			}
		}
	}
	return nil // after an error, program is called again later
}

func proxy(ctx context.Context, client kubernetes.Interface, backend sink.Sink) error {
	source, err := watch.NewClientset(client, watch.ClientsetOptions{})
	if err != nil {
		return err
	}
	return kubeproxy.Run(ctx, kubeproxy.Options{Source: source, Sink: backend,
		State: localstate.Options{NodeName: "node-1"}})
}

// A whole proxy. The backend prints what it would tell its dataplane.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	client := fake.NewClientset(service("web", "10.96.0.10"), slice("web", "10.1.0.5", "10.1.0.6"))
	backend := sink.NewFullState(func(ctx context.Context, s *sink.Snapshot) error {
		defer cancel() // one state is enough here
		return program(ctx, s)
	})
	fmt.Println(proxy(ctx, client, backend))
	// Output:
	// default/web port http 80/TCP: Cluster, masquerade Never, if empty Reject
	//   balance to 10.1.0.5:8080
	//   balance to 10.1.0.6:8080
	// <nil>
}

// TestReadmeShowsTheExample: the quick start of the README is compiled code.
func TestReadmeShowsTheExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		assert.True(t, strings.Contains(string(source), block[1]), "not in example_test.go:\n%s", block[1])
	}
}

// A loop of one's own, for programs that have one already: what Run does, with health and metrics, in the simplest
// form.
func ExampleProgress() {
	ctx := context.Background()
	proxy := health.New(health.Options{}) // its handlers answer /healthz and /livez
	progress, err := kubeproxy.NewProgress(kubeproxy.ProgressOptions{Health: proxy, Metrics: prometheus.NewRegistry()})
	if err != nil {
		panic(err)
	}
	defer progress.Close()
	state, err := localstate.New(ctx, localstate.Options{NodeName: "node-1"})
	if err != nil {
		panic(err)
	}
	backend := sink.NewFullState(program)

	for _, object := range []metav1.Object{service("web", "10.96.0.10"), slice("web", "10.1.0.5")} {
		changed, err := state.Apply(object, false)
		if err != nil {
			panic(err)
		}
		if changed {
			progress.Changed(object)
		}
	}
	progress.Queued(state.Pending())
	progress.Flushed(state.Flush(backend), state.NoLocalEndpoints())
	start := time.Now()
	err = backend.Sync(ctx) // if it fails: ResyncFailed and Sync again, after a pause
	progress.Synced(true, start, time.Now(), err)
	fmt.Println(err, proxy.Family(model.IPv4).LastApplied.After(start), proxy.Healthy())
	// Output:
	// default/web port http 80/TCP: Cluster, masquerade Never, if empty Reject
	//   balance to 10.1.0.5:8080
	// <nil> true true
}
