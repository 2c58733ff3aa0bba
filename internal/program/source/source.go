// Package source has the flags by which programs select the source of cluster objects.
package source

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Cluster has the flags for the source of objects.
type Cluster struct {
	File, Kubeconfig string
	// Config, which is not a flag either, returns the connection to the API server in a program that has other flags for
	// that. Files are used nevertheless, if they are given.
	Config func() (*rest.Config, error)
	// Wrap, which is not a flag either, wraps the client's transport, unless it is nil.
	Wrap func(http.RoundTripper) http.RoundTripper
	// Details sets localstate.ClusterOptions.EndpointDetails. It is not a flag.
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
func (f *Cluster) Given() bool { return f.File != "" || f.Kubeconfig != "" || f.Config != nil }

// Source returns the source that the flags name.
func (f *Cluster) Source() (watch.Source, error) {
	switch {
	case f.File != "" && f.Kubeconfig != "":
		return nil, errors.New("--file and --kubeconfig are mutually exclusive")
	case f.File != "":
		if _, err := os.Stat(f.File); err != nil {
			return nil, fmt.Errorf("--file: %w", err) // a proxy would wait for it, but a person wants the error
		}
		return watch.NewFiles(f.File)
	case f.Given():
		client, err := f.Client()
		if err != nil {
			return nil, err
		}
		return watch.NewClientset(client, watch.ClientsetOptions{EndpointDetails: f.Details})
	}
	return nil, errors.New("one of --file and --kubeconfig is required")
}

// Client returns a client of the API server that the flags name.
func (f *Cluster) Client() (kubernetes.Interface, error) {
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", config.Host, err)
	}
	return client, nil
}

func (f *Cluster) config() (config *rest.Config, err error) {
	if f.Config != nil {
		config, err = f.Config()
	} else if config, err = clientcmd.BuildConfigFromFlags("", f.Kubeconfig); err != nil {
		err = fmt.Errorf("kubeconfig %s: %w", f.Kubeconfig, err)
	}
	if err == nil && f.Wrap != nil {
		config.Wrap(f.Wrap)
	}
	return config, err
}
