package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	netutils "k8s.io/utils/net"
)

// How long to wait for the node to become known (S48).
const (
	nodePoll        = time.Second
	nodeIPsTimeout  = 30 * time.Second
	podCIDRsTimeout = 5 * time.Minute
)

// waitForNode waits until the Node object has an IP, for 30 s at most; then the program goes on without. If podCIDRs are
// needed it waits for those, too, for 5 min at most; then there is an error (S48). It returns the IPs, the best first.
func waitForNode(ctx context.Context, client kubernetes.Interface, name string, needPodCIDRs bool) ([]netip.Addr, error) {
	log := klog.FromContext(ctx).WithValues("node", name)
	ctx = klog.NewContext(ctx, log)
	node, err := awaitNode(ctx, client, name, nodeIPsTimeout, func(n *corev1.Node) bool { return len(nodeIPs(n)) > 0 })
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		log.Error(err, "Going on without the node's IPs", "waited", nodeIPsTimeout)
	}
	if !needPodCIDRs {
		return nodeIPs(node), nil
	}
	node, err = awaitNode(ctx, client, name, podCIDRsTimeout, func(n *corev1.Node) bool { return len(n.Spec.PodCIDRs) > 0 || n.Spec.PodCIDR != "" })
	if err != nil {
		return nil, fmt.Errorf("node %s has no podCIDRs, which detectLocalMode NodeCIDR needs: %w", name, err)
	}
	return nodeIPs(node), nil
}

// awaitNode asks for the Node once a second until it is as it should be. It returns the Node as it was last seen, which may
// be nil, and an error if time is up. It lists, because that is what the program has to be allowed anyway.
func awaitNode(ctx context.Context, client kubernetes.Interface, name string, timeout time.Duration, enough func(*corev1.Node) bool) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(nodePoll)
	defer tick.Stop()
	var node *corev1.Node
	for {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{
			FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
			ResourceVersion: "0", // what the API server has at hand
		})
		switch {
		case err != nil && ctx.Err() == nil:
			klog.FromContext(ctx).Error(err, "Cannot read the Node; trying again")
		case err != nil:
		default:
			err = errors.New("there is no such Node")
			for i := range list.Items {
				if list.Items[i].Name == name {
					node, err = &list.Items[i], errors.New("the Node is not complete")
				}
			}
			if node != nil && enough(node) {
				return node, nil
			}
		}
		select {
		case <-ctx.Done():
			return node, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// nodeIPs returns the IPs of a Node, which may be nil, in the order of model.Node.IPs.
func nodeIPs(node *corev1.Node) []netip.Addr {
	var ips []netip.Addr
	if node == nil {
		return nil
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range node.Status.Addresses {
			if ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(a.Address)); ok && a.Type == kind {
				ips = append(ips, ip.Unmap())
			}
		}
	}
	return ips
}
