package dropin

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/localstate"
)

// How long to wait for the node's IPs (S48). The library waits for podCIDRs where they are needed.
const (
	nodePoll       = time.Second
	nodeIPsTimeout = 30 * time.Second
)

// waitForNode requests a Node's IPs from the API server. It lists Nodes, because the program needs that permission
// anyway. After each answer it calls missing, with true if the Node does not exist.
func waitForNode(
	ctx context.Context, client kubernetes.Interface, name string, missing func(bool),
) ([]netip.Addr, error) {
	return waitForIPs(ctx, name, func(ctx context.Context) ([]netip.Addr, error) {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{
			FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
			ResourceVersion: "0", // from the API server's cache
		})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if list.Items[i].Name == name {
				missing(false)
				return localstate.NodeIPs(&list.Items[i]), nil
			}
		}
		missing(true)
		return nil, nil
	})
}

// nodeMissing returns a function that reports a missing Node: always to the health status, and the first time in the
// log and as an Event.
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

// waitForIPs requests the node's IPs once a second until there is one, for at most 30 s; then the program continues
// without (S48). It returns the IPs in the order of model.Node.IPs, and an error if ctx ends.
func waitForIPs(
	ctx context.Context, name string, ask func(context.Context) ([]netip.Addr, error),
) ([]netip.Addr, error) {
	log := klog.FromContext(ctx).WithValues("node", name)
	var ips []netip.Addr
	var last error
	told := ""
	err := wait.PollUntilContextTimeout(ctx, nodePoll, nodeIPsTimeout, true, func(ctx context.Context) (bool, error) {
		if ips, last = ask(ctx); last != nil && ctx.Err() == nil {
			if text := last.Error(); text != told { // not every second
				log.Error(last, "Cannot read the Node; trying again")
				told = text
			}
		}
		return last == nil && len(ips) > 0, nil
	})
	if err != nil && ctx.Err() == nil {
		log.Info("Continuing without the node's IPs", "waited", nodeIPsTimeout, "lastError", last)
	}
	return ips, ctx.Err()
}
