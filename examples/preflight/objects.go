package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// configuration returns a proxy's configuration by the value of a flag.
func configuration(ctx context.Context, name, kubeconfig string) (*v1alpha2.KubeProxyConfiguration, error) {
	var data []byte
	var err error
	switch name {
	case "iptables", "ipvs", "nftables":
		data = []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: " + name + "\n")
	case "configmap":
		data, err = fromConfigMap(ctx, kubeconfig)
	default:
		data, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, err
	}
	c, _, err := config.Load(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if c.Mode == "" {
		c.Mode = v1alpha2.ProxyModeIPTables // as kube-proxy on Linux
	}
	return c, nil
}

// fromConfigMap returns the configuration of the cluster's kube-proxy, where kubeadm puts it.
func fromConfigMap(ctx context.Context, kubeconfig string) ([]byte, error) {
	if kubeconfig == "" {
		return nil, errors.New("configmap needs --kubeconfig")
	}
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	m, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "kube-proxy", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	text, ok := m.Data["config.conf"]
	if !ok {
		return nil, errors.New("the ConfigMap kube-system/kube-proxy has no key config.conf")
	}
	return []byte(text), nil
}

// replay is a source of objects that do not change.
type replay []watch.Change

// Run implements watch.Source.
func (r replay) Run(ctx context.Context, _ string, h watch.Handler) error {
	h.Update(r...)
	h.Synced()
	<-ctx.Done()
	return nil
}

// collect returns the objects that a source has now.
func collect(ctx context.Context, src watch.Source, node string) (replay, error) {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &collector{done: cancel}
	if err := src.Run(running, node, c); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return c.objects, nil
}

// collector keeps copies of what a source delivers. It implements watch.Handler.
type collector struct {
	done func()

	mu      sync.Mutex
	objects replay
}

// Update implements watch.Handler.
func (c *collector) Update(changes ...watch.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range changes {
		if o, ok := change.Object.(runtime.Object); ok {
			c.objects = append(c.objects, watch.Change{Object: o.DeepCopyObject().(metav1.Object), Deleted: change.Deleted})
		}
	}
}

// Synced implements watch.Handler.
func (c *collector) Synced() { c.done() }
