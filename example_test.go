package kubeproxy_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
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
	feed := &kubeproxy.LocalFeed{Source: source, State: localstate.Options{NodeName: "node-1"}}
	return kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: backend})
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
