// Command print-state is the smallest complete proxy: it watches a cluster and prints what a backend would program on a
// node, whenever that changes. It is the README's quick start; cmd/kubectl-serviceproxy prints more, in other formats.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// program is the backend: it gets the full state whenever something has changed.
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

func run(ctx context.Context, kubeconfig, node string) error {
	if node == "" {
		return errors.New("NODE_NAME is not set")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	source, err := watch.NewClientset(client, watch.ClientsetOptions{})
	if err != nil {
		return err
	}
	feed := &kubeproxy.LocalFeed{Source: source, State: localstate.Options{
		NodeName:    node,
		DetectLocal: localstate.DetectLocal{NodeCIDR: true}, // whose traffic is masqueraded: all but this node's pods
	}}
	return kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: sink.NewFullState(program)})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("KUBECONFIG"), os.Getenv("NODE_NAME")); err != nil {
		log.Fatal(err)
	}
}
