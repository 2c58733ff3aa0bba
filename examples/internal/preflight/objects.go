package preflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/dropin/command"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// configuration returns a proxy's configuration by the value of a flag.
func configuration(ctx context.Context, name, kubeconfig string) (*v1alpha2.KubeProxyConfiguration, error) {
	var data []byte
	var err error
	switch {
	case name == "daemonset":
		return fromDaemonSet(ctx, kubeconfig)
	case strings.HasPrefix(name, "-"):
		return fromArguments(strings.Fields(name))
	case name == "iptables", name == "ipvs", name == "nftables":
		data = []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: " + name + "\n")
	case name == "configmap":
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
	return withMode(c), nil
}

// withMode gives a configuration without a mode that which kube-proxy has on Linux then.
func withMode(c *v1alpha2.KubeProxyConfiguration) *v1alpha2.KubeProxyConfiguration {
	if c.Mode == "" {
		c.Mode = v1alpha2.ProxyModeIPTables
	}
	return c
}

// fromConfigMap returns the configuration of the cluster's kube-proxy, where kubeadm puts it.
func fromConfigMap(ctx context.Context, kubeconfig string) ([]byte, error) {
	client, err := newClient("configmap", kubeconfig)
	if err != nil {
		return nil, err
	}
	return readConfigMap(ctx, client, proxyName, "config.conf")
}

// proxyName is the name that kubeadm gives to the objects of kube-proxy.
const proxyName = "kube-proxy"

func newClient(what, kubeconfig string) (kubernetes.Interface, error) {
	if kubeconfig == "" {
		return nil, errors.New(what + " needs --kubeconfig")
	}
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return client, nil
}

func readConfigMap(ctx context.Context, client kubernetes.Interface, name, key string) ([]byte, error) {
	m, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	text, ok := m.Data[key]
	if !ok {
		return nil, fmt.Errorf("ConfigMap kube-system/%s has no key %s", name, key)
	}
	return []byte(text), nil
}

// fromDaemonSet returns the configuration that the arguments of the cluster's kube-proxy say, with the file that they
// name.
func fromDaemonSet(ctx context.Context, kubeconfig string) (*v1alpha2.KubeProxyConfiguration, error) {
	client, err := newClient("daemonset", kubeconfig)
	if err != nil {
		return nil, err
	}
	d, err := client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, proxyName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	pod := d.Spec.Template.Spec
	if len(pod.Containers) == 0 {
		return nil, errors.New("DaemonSet kube-system/kube-proxy has no containers")
	}
	c := pod.Containers[0]
	var args []string
	for _, arg := range slices.Concat(c.Command, c.Args) {
		args = append(args, strings.Fields(arg)...) // of sh -c "exec kube-proxy ..." as well
	}
	args = slices.DeleteFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "--") })
	for i, arg := range args {
		file, ok := strings.CutPrefix(arg, "--config=")
		if !ok {
			continue
		}
		text, err := mounted(ctx, client, &pod, file)
		if err != nil {
			return nil, fmt.Errorf("DaemonSet kube-system/kube-proxy: %s: %w", arg, err)
		}
		dir, err := os.MkdirTemp("", "preflight-")
		if err != nil {
			return nil, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		copied := filepath.Join(dir, path.Base(file))
		if err := os.WriteFile(copied, text, 0o600); err != nil {
			return nil, err
		}
		args[i] = "--config=" + copied
	}
	return fromArguments(args)
}

// mounted returns a file of the first container of a pod that comes from a ConfigMap.
func mounted(ctx context.Context, client kubernetes.Interface, pod *corev1.PodSpec, file string) ([]byte, error) {
	for _, mount := range pod.Containers[0].VolumeMounts {
		key, ok := strings.CutPrefix(file, strings.TrimSuffix(mount.MountPath, "/")+"/")
		if !ok {
			continue
		}
		for _, v := range pod.Volumes {
			if v.Name != mount.Name || v.ConfigMap == nil {
				continue
			}
			for _, item := range v.ConfigMap.Items {
				if item.Path == key {
					key = item.Key
				}
			}
			return readConfigMap(ctx, client, v.ConfigMap.Name, key)
		}
	}
	return nil, errors.New("it is not in a ConfigMap: copy it from a node, and give its path to --from")
}

// fromArguments returns the configuration that arguments of kube-proxy say.
func fromArguments(args []string) (*v1alpha2.KubeProxyConfiguration, error) {
	c, err := command.Parse(args, io.Discard)
	if err != nil {
		return nil, err
	}
	if c.Config.Configuration == nil {
		return nil, errors.New("the arguments only ask for the version")
	}
	return withMode(c.Config.Configuration), nil
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

// nodes returns the names of the Nodes.
func (r replay) nodes() (names []string) {
	for _, c := range r {
		if node, ok := c.Object.(*corev1.Node); ok && !c.Deleted {
			names = append(names, node.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// known returns an error if a name is not among those of the Nodes: what would be said of such a node is wrong.
func known(nodes []string, name string) error {
	if slices.Contains(nodes, name) {
		return nil
	}
	some := nodes[:min(5, len(nodes))]
	return fmt.Errorf("there is no Node %q: check --node-name; there are %d Nodes, such as %q", name, len(nodes), some)
}

// forNode returns the objects without the other Nodes.
func (r replay) forNode(name string) replay {
	return slices.DeleteFunc(slices.Clone(r), func(c watch.Change) bool {
		node, ok := c.Object.(*corev1.Node)
		return ok && node.Name != name
	})
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
