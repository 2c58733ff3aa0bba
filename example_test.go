package kubeproxy_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
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
			route := port.Routes.IPv4.ClusterIP
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

// Events can be counted as they arrive, before they are processed.
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

// A program waits until its proxy is ready, and later until its own change is applied.
func ExampleSyncer() {
	source, err := watch.NewClientset(fake.NewClientset(service("web", "10.96.0.10")), watch.ClientsetOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	var uplink, applied atomic.Value // what the backend depends on besides
	uplink.Store("eth0")
	backend := sink.NewFullState(func(context.Context, *sink.Snapshot) error {
		applied.Store(uplink.Load())
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	syncer, ended := &kubeproxy.Syncer{}, make(chan error)
	go func() {
		ended <- kubeproxy.Run(ctx, kubeproxy.Options{
			Feed: &kubeproxy.LocalFeed{Source: source}, Sink: backend, Syncer: syncer})
	}()
	fmt.Println("ready:", syncer.Sync(ctx), applied.Load())
	uplink.Store("eth1")
	fmt.Println("applied:", syncer.Sync(ctx), applied.Load())
	cancel()
	fmt.Println(<-ended, syncer.Sync(context.Background()))
	// Output:
	// ready: <nil> eth0
	// applied: <nil> eth1
	// <nil> the run has ended
}

// The first attempt is over, even if a Service failed in it.
func ExampleSyncer_Sync() {
	source, err := watch.NewClientset(fake.NewClientset(service("web", "10.96.0.10")), watch.ClientsetOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	backend := sink.NewFullState(func(context.Context, *sink.Snapshot) error { return errors.New("a service failed") })
	ctx, cancel := context.WithCancel(context.Background())
	syncer, ended := &kubeproxy.Syncer{}, make(chan error)
	go func() {
		ended <- kubeproxy.Run(ctx, kubeproxy.Options{
			Feed: &kubeproxy.LocalFeed{Source: source}, Sink: backend, Syncer: syncer})
	}()
	fmt.Println(syncedOnce(ctx, syncer))
	cancel()
	fmt.Println(<-ended, syncedOnce(ctx, syncer))
	// Output:
	// true
	// <nil> false
}

func syncedOnce(ctx context.Context, syncer *kubeproxy.Syncer) bool {
	var syncedOnce atomic.Bool
	err := syncer.Sync(ctx)
	syncedOnce.Store(ctx.Err() == nil && !errors.Is(err, kubeproxy.ErrRunEnded))
	return syncedOnce.Load()
}

// TestTheQuickStart: the program in the README is examples/print-state.
func TestTheQuickStart(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.Len(t, blocks, 1)
	example, err := os.ReadFile("examples/print-state/main.go")
	require.NoError(t, err)
	_, program, found := strings.Cut(string(example), "\npackage main\n")
	require.True(t, found)
	assert.Equal(t, "package main\n"+program, blocks[0][1])
}
