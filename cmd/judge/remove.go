package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// Only objects in a real API server outlive a judge that is killed: the next run removes them. Namespaces, and their
// rules, end with the process.

func (c *cluster) labels() map[string]string { return map[string]string{runLabel: c.run} }

// clear returns an error if the cluster allocates cluster IPs that have another meaning in the suite's network.
func (c *cluster) clear(ctx context.Context, env program.Node) error {
	list, err := c.client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range list.Items {
		if _, ours := s.Labels[runLabel]; ours {
			continue
		}
		for _, text := range s.Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				continue // no address of the suite is in it
			}
			for _, pods := range env.ClusterCIDRs() {
				if p.Overlaps(pods) {
					return fmt.Errorf("ServiceCIDR %s of the API server has %v, but the pods of the suite have %v: "+
						"start it with another --service-cluster-ip-range", s.Name, p, pods)
				}
			}
			for _, ip := range env.HostAddresses {
				if p.Contains(ip) {
					return fmt.Errorf("ServiceCIDR %s of the API server has %v, but the node of the suite has %v: "+
						"start it with another --service-cluster-ip-range", s.Name, p, ip)
				}
			}
		}
	}
	return nil
}

// removeAll deletes all objects that a label selects and waits until they are gone.
func (c *cluster) removeAll(ctx context.Context, selector string) error {
	return until(ctx, func() error {
		left, err := c.removeOnce(ctx, selector)
		if err == nil && left > 0 {
			err = fmt.Errorf("%d objects of a judge are still there", left)
		}
		return err
	})
}

// removeOnce deletes all objects that a label selects and returns their number.
func (c *cluster) removeOnce(ctx context.Context, selector string) (n int, err error) {
	o := metav1.ListOptions{LabelSelector: selector}
	services, err1 := c.client.CoreV1().Services(metav1.NamespaceAll).List(ctx, o)
	endpoints, err2 := c.client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).List(ctx, o)
	nodes, err3 := c.client.CoreV1().Nodes().List(ctx, o)
	cidrs, err4 := c.client.NetworkingV1().ServiceCIDRs().List(ctx, o)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return 0, err
	}
	var errs []error
	for i := range services.Items {
		errs = append(errs, c.remove(ctx, &services.Items[i]))
	}
	for i := range endpoints.Items {
		errs = append(errs, c.remove(ctx, &endpoints.Items[i]))
	}
	for i := range nodes.Items {
		errs = append(errs, c.remove(ctx, &nodes.Items[i]))
	}
	for i := range cidrs.Items { // last, because it cannot be deleted while Services use its addresses
		errs = append(errs, c.remove(ctx, &cidrs.Items[i]))
	}
	n = len(services.Items) + len(endpoints.Items) + len(nodes.Items) + len(cidrs.Items)
	return n, errors.Join(errs...)
}

// remove deletes an object, if it exists.
func (c *cluster) remove(ctx context.Context, o metav1.Object) error {
	var err error
	switch name, deletion := o.GetName(), (metav1.DeleteOptions{}); o.(type) {
	case *corev1.Service:
		err = c.client.CoreV1().Services(o.GetNamespace()).Delete(ctx, name, deletion)
	case *corev1.Node:
		err = c.client.CoreV1().Nodes().Delete(ctx, name, deletion)
	case *networkingv1.ServiceCIDR:
		err = c.client.NetworkingV1().ServiceCIDRs().Delete(ctx, name, deletion)
	default:
		err = c.client.DiscoveryV1().EndpointSlices(o.GetNamespace()).Delete(ctx, name, deletion)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// release removes everything that this run has created, and then the lease.
func (c *cluster) release() {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	if c.fail != nil {
		c.fail(nil)
	}
	if c.lease == nil {
		return
	}
	c.lease.wait()
	err := c.outages.retry(ctx, func() error {
		_, err := c.removeOnce(ctx, runLabel+"="+c.run)
		return err
	})
	if err != nil {
		c.say(fmt.Sprintf("objects with the label %s=%s stay behind in the cluster; the next run removes them: %v",
			runLabel, c.run, err))
	}
	c.lease.release(ctx)
}
