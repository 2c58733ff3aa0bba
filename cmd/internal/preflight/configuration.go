package preflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-proxy-lib/dropin"
	"sigs.k8s.io/kube-proxy-lib/dropin/command"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/program/source"
)

// Configuration returns the proxy configuration that a text names as --from does: a mode, a file, flags, or the
// cluster's own DaemonSet or ConfigMap; and what the proxy ignores of it, such as a misspelled field.
func Configuration(ctx context.Context, name string, cluster *source.Cluster) (dropin.Config, []config.Warning, error) {
	var data []byte
	var err error
	switch {
	case name == "daemonset":
		return fromDaemonSet(ctx, cluster)
	case strings.HasPrefix(name, "-"):
		args, err := splitWords(name)
		if err != nil {
			return dropin.Config{}, nil, err
		}
		return fromArguments(args)
	case name == "iptables", name == "ipvs", name == "nftables":
		data = []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: " + name + "\n")
	case name == "configmap":
		data, err = fromConfigMap(ctx, cluster)
	default:
		data, err = os.ReadFile(name)
	}
	if err != nil {
		return dropin.Config{}, nil, err
	}
	c, warnings, err := config.Load(data)
	if err != nil {
		return dropin.Config{}, nil, fmt.Errorf("%s: %w", name, err)
	}
	return withMode(dropin.Config{Configuration: c}), warnings, nil
}

// withMode sets kube-proxy's default mode on Linux if the configuration has none.
func withMode(c dropin.Config) dropin.Config {
	if c.Configuration.Mode == "" {
		c.Configuration.Mode = v1alpha2.ProxyModeIPTables
	}
	return c
}

// fromArguments returns the configuration from the arguments of kube-proxy.
func fromArguments(args []string) (dropin.Config, []config.Warning, error) {
	c, err := command.Parse(args, io.Discard)
	if errors.Is(err, pflag.ErrHelp) {
		err = errors.New("the arguments only ask for help")
	}
	if err != nil {
		return dropin.Config{}, nil, err
	}
	for _, arg := range args {
		for _, other := range []string{"--cleanup", "--init-only", "--write-config-to"} {
			if name, value, _ := strings.Cut(strings.ReplaceAll(arg, "_", "-"), "="); name == other && value != "false" {
				return dropin.Config{}, nil, fmt.Errorf("the arguments do not start a proxy: %s", arg)
			}
		}
	}
	if c.Config.Configuration == nil {
		return dropin.Config{}, nil, errors.New("the arguments only ask for the version")
	}
	return withMode(c.Config), c.Warnings, nil
}

// fromConfigMap returns the configuration of the cluster's kube-proxy from kubeadm's ConfigMap.
func fromConfigMap(ctx context.Context, cluster *source.Cluster) ([]byte, error) {
	client, err := newClient("configmap", cluster)
	if err != nil {
		return nil, err
	}
	return readConfigMap(ctx, client, proxyName, "config.conf")
}

// proxyName is kubeadm's name for the objects of kube-proxy, and the name of the program.
const proxyName = "kube-proxy"

func newClient(what string, cluster *source.Cluster) (kubernetes.Interface, error) {
	switch {
	case cluster.File != "" && cluster.Config != nil:
		return nil, errors.New(what + " is read from a cluster: leave out --file, or name a file of its configuration")
	case cluster.Kubeconfig == "" && cluster.Config == nil:
		return nil, errors.New(what + " needs --kubeconfig")
	}
	return cluster.Client()
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
