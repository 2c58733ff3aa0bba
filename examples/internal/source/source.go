// Package source has the flags with which the examples choose where cluster objects come from.
package source

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Cluster are the flags that say where objects come from.
type Cluster struct {
	File, Kubeconfig string
	// Details keeps the details of endpoints, see localstate.ClusterOptions.EndpointDetails. It is not a flag.
	Details bool
}

// Register adds the flags to a set.
func (f *Cluster) Register(set *flag.FlagSet) {
	set.StringVar(&f.File, "file", "",
		"`path` of a file, or of a directory of files, of Kubernetes objects as kubectl "+
			"prints them with -o yaml or json")
	set.StringVar(&f.Kubeconfig, "kubeconfig", "", "`path` of a kubeconfig file for the API server to watch")
}

// Flags are the flags of a program that computes the state of a node.
type Flags struct {
	Cluster
	NodeName string
}

// Register adds the flags to a set.
func (f *Flags) Register(set *flag.FlagSet, nodeName string) {
	f.Cluster.Register(set)
	set.StringVar(&f.NodeName, "node-name", nodeName, "`name` of the node whose state to compute")
}

// Given reports whether the flags name a source.
func (f *Cluster) Given() bool { return f.File != "" || f.Kubeconfig != "" }

// Source returns the source that the flags name.
func (f *Cluster) Source() (watch.Source, error) {
	switch {
	case f.File != "" && f.Kubeconfig != "":
		return nil, errors.New("--file and --kubeconfig are mutually exclusive")
	case f.File != "":
		if _, err := os.Stat(f.File); err != nil {
			return nil, fmt.Errorf("--file: %w", err) // a proxy would wait for it; a person wants to know
		}
		return watch.NewFiles(f.File)
	case f.Kubeconfig != "":
		config, err := f.config()
		if err != nil {
			return nil, err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", f.Kubeconfig, err)
		}
		return watch.NewClientset(client, watch.ClientsetOptions{EndpointDetails: f.Details})
	}
	return nil, errors.New("one of --file and --kubeconfig is required")
}

func (f *Cluster) config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", f.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", f.Kubeconfig, err)
	}
	return config, nil
}

// APIServer returns the addresses of the API server that the kubeconfig file names; none without one.
func (f *Cluster) APIServer(ctx context.Context) (addresses []netip.Prefix, err error) {
	if f.Kubeconfig == "" {
		return nil, nil
	}
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", f.Kubeconfig, err)
	}
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", server.Hostname())
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", f.Kubeconfig, err)
	}
	for _, a := range list {
		addresses = append(addresses, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
	}
	return addresses, nil
}
