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

// How long to wait for the node's IPs (S48), and for the answer to one request. Without the latter, an API server whose
// packets are dropped would use up all the time: client-go waits 30 seconds for a connection. The library waits for
// podCIDRs where they are needed.
const (
	nodePoll       = time.Second
	nodeIPsTimeout = 30 * time.Second
	answerTimeout  = 10 * time.Second
)

// readErrorPause is the shortest time between two log lines about requests that fail. The error of one that fails for
// the same reason may differ, for example in the port that the resolver was asked from.
const readErrorPause = 20 * time.Second

// waitForNode requests a Node's IPs from the API server. It lists Nodes, because the program needs that permission
// anyway. After each answer it calls missing, with true if the Node does not exist.
func waitForNode(
	ctx context.Context, client kubernetes.Interface, name string, missing func(bool),
) ([]netip.Addr, error) {
	return waitForIPs(ctx, name, func(ctx context.Context, unknown func()) ([]netip.Addr, error) {
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
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
				ips := localstate.NodeIPs(&list.Items[i])
				if len(ips) == 0 {
					unknown()
				}
				return ips, nil
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
// without (S48). It returns the IPs in the order of model.Node.IPs, and an error if ctx ends. ask calls unknown if the
// node has none yet.
func waitForIPs(
	ctx context.Context, name string, ask func(_ context.Context, unknown func()) ([]netip.Addr, error),
) ([]netip.Addr, error) {
	log := klog.FromContext(ctx).WithValues("node", name)
	unknown := sync.OnceFunc(func() {
		log.Info("The node has no addresses yet; waiting for them, then continuing without", "waitingFor", nodeIPsTimeout)
	})
	var ips []netip.Addr
	var last error
	var told struct {
		text string
		at   time.Time
	}
	err := wait.PollUntilContextTimeout(ctx, nodePoll, nodeIPsTimeout, true, func(ctx context.Context) (bool, error) {
		if ips, last = ask(ctx, unknown); last != nil && ctx.Err() == nil {
			if text, now := last.Error(), time.Now(); text != told.text && now.Sub(told.at) >= readErrorPause {
				log.Error(last, "Cannot read the Node; trying again")
				told.text, told.at = text, now
			}
		}
		return last == nil && len(ips) > 0, nil
	})
	if err != nil && ctx.Err() == nil {
		log.Info("Continuing without the node's IPs", "waited", nodeIPsTimeout, "lastError", last)
	}
	return ips, ctx.Err()
}
