package dropin

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	netutils "k8s.io/utils/net"
)

// How long to wait for the node's IPs (S48). The library waits for the podCIDRs, where these are needed.
const (
	nodePoll       = time.Second
	nodeIPsTimeout = 30 * time.Second
)

// waitForNode asks the API server for the IPs of a Node. It lists Nodes, because the program has that permission
// anyway. It calls missing with whether there is no such Node, each time that it knows.
func waitForNode(
	ctx context.Context, client kubernetes.Interface, name string, missing func(bool),
) ([]netip.Addr, error) {
	return waitForIPs(ctx, name, func(ctx context.Context) ([]netip.Addr, error) {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{
			FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
			ResourceVersion: "0", // what the API server has at hand
		})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if list.Items[i].Name == name {
				missing(false)
				return nodeIPs(&list.Items[i]), nil
			}
		}
		missing(true)
		return nil, nil
	})
}

// nodeMissing returns a function that reports whether there is a Node of this node's name: at once in the health, and
// the first time that there is none in the log and as an Event.
func (p *proxy) nodeMissing(ctx context.Context) func(bool) {
	var once sync.Once
	return func(missing bool) {
		if p.health.SetNodeMissing(missing); !missing {
			return
		}
		once.Do(func() {
			klog.FromContext(ctx).Error(nil, "Node not found; waiting for it, then continuing without its IPs. Check "+
				"--hostname-override against kubectl get nodes", "node", p.nodeName, "waitingFor", nodeIPsTimeout)
			p.events.warning(notice{"NodeNotFound", fmt.Sprintf("There is no Node %q, the name that this kube-proxy was given: "+
				"check --hostname-override", p.nodeName)})
		})
	}
}

// waitForIPs asks for the node's IPs once a second until it has one, for 30 s at most; then the program goes on without
// (S48). It returns the IPs, the best first, and an error if ctx ends.
func waitForIPs(
	ctx context.Context, name string, ask func(context.Context) ([]netip.Addr, error),
) ([]netip.Addr, error) {
	log := klog.FromContext(ctx).WithValues("node", name)
	var ips []netip.Addr
	var last error
	err := wait.PollUntilContextTimeout(ctx, nodePoll, nodeIPsTimeout, true, func(ctx context.Context) (bool, error) {
		if ips, last = ask(ctx); last != nil && ctx.Err() == nil {
			log.Error(last, "Cannot read the Node; trying again")
		}
		return last == nil && len(ips) > 0, nil
	})
	if err != nil && ctx.Err() == nil {
		log.Info("Continuing without the node's IPs", "waited", nodeIPsTimeout, "lastError", last)
	}
	return ips, ctx.Err()
}

// nodeIPs returns the IPs of a Node in the order that model.Node.IPs has.
func nodeIPs(node *corev1.Node) []netip.Addr {
	var ips []netip.Addr
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range node.Status.Addresses {
			if ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(a.Address)); ok && a.Type == kind {
				ips = append(ips, ip.Unmap())
			}
		}
	}
	return ips
}
