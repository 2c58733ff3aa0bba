package kubeproxy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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

// Events can be counted as they come, before anything is made of them.
func ExampleLocalFeed() {
	client := fake.NewClientset(service("web", "10.96.0.10"), slice("web", "10.1.0.5", "10.1.0.6"))
	source, err := watch.NewClientset(client, watch.ClientsetOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	services, slices := 0, map[discoveryv1.AddressType]int{}
	feed := &kubeproxy.LocalFeed{Source: source, OnEvent: func(c watch.Change) {
		switch object := c.Object.(type) {
		case *corev1.Service:
			services++
		case *discoveryv1.EndpointSlice:
			slices[object.AddressType]++
		}
	}}
	backend := sink.NewFullState(func(context.Context, *sink.Snapshot) error {
		cancel()
		return nil
	})
	fmt.Println(kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: backend}), services, slices)
	// Output:
	// <nil> 1 map[IPv4:1]
}

// TestTheQuickStartCompiles: the program in the README, as it is printed there.
func TestTheQuickStartCompiles(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.Len(t, blocks, 1)
	folder, err := filepath.Abs(".")
	require.NoError(t, err)
	main, overlay := filepath.Join(t.TempDir(), "main.go"), filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(main, []byte(blocks[0][1]), 0o600))
	replaced, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(folder, "quickstart", "main.go"): main}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replaced, 0o600))
	out, err := exec.Command("go", "build", "-overlay", overlay, "-o", os.DevNull, "./quickstart").CombinedOutput()
	require.NoError(t, err, "%s", out)
}
