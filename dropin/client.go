package dropin

import (
	"fmt"
	"net/netip"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	componentbasev1alpha1 "k8s.io/component-base/config/v1alpha1"

	"sigs.k8s.io/kube-proxy-lib/internal/prom"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// newClient returns a client for the API server that a kubeconfig file or master names; without both, for that of the
// cluster in which this pod runs. Its requests are counted, and the addresses that it connects to are noted.
func newClient(
	c componentbasev1alpha1.ClientConnectionConfiguration, master string, requests *prom.Requests, reached *reached,
) (kubernetes.Interface, error) {
	rc, err := restConfig(c, master)
	if err != nil {
		return nil, err
	}
	rc.Wrap(requests.Wrap)
	rc.Dial = reached.dial
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", rc.Host, err)
	}
	return client, nil
}

func restConfig(c componentbasev1alpha1.ClientConnectionConfiguration, master string) (*rest.Config, error) {
	var rc *rest.Config
	var err error
	if c.Kubeconfig == "" && master == "" {
		if rc, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("neither kubeconfig nor master is set, and this program does not run in a pod: %w",
				err)
		}
	} else {
		if rc, err = clientcmd.BuildConfigFromFlags(master, c.Kubeconfig); err != nil {
			return nil, fmt.Errorf("kubeconfig %q: %w", c.Kubeconfig, err)
		}
	}
	rc.ContentType, rc.AcceptContentTypes = c.ContentType, c.AcceptContentTypes
	if rc.AcceptContentTypes == "" && rc.ContentType == protobuf {
		rc.AcceptContentTypes = protobuf + ",application/json" // errors may come as JSON
	}
	rc.QPS, rc.Burst = c.QPS, int(c.Burst)
	return rc, nil
}

// apiServers returns the IP address at which a client reaches the API server, if it is configured with one and not with
// a name. The addresses behind a name are among those that the program has reached, if it made the client itself.
func apiServers(client kubernetes.Interface) []netip.Addr {
	rc, ok := client.CoreV1().RESTClient().(*rest.RESTClient)
	if !ok || rc == nil { // a fake
		return nil
	}
	addr, err := netip.ParseAddr(rc.Get().URL().Hostname())
	if err != nil {
		return nil
	}
	return []netip.Addr{addr.Unmap()}
}

// brains returns the IP addresses among the targets of a node.
func brains(targets []string) (list []netip.Addr) {
	for _, target := range targets {
		if a, err := netip.ParseAddrPort(target); err == nil {
			list = append(list, a.Addr().Unmap().WithZone(""))
		}
	}
	return list
}
