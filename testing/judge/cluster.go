package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
)

// runLabel is on everything that the judge makes in a cluster. Its value is the run.
const runLabel = "kube-proxy-lib.sigs.k8s.io/judge"

// objectName is the name of the judge's own objects: its Lease, which keeps other judges out, and its ServiceCIDR.
const objectName = "kube-proxy-lib-judge"

// cluster is a real API server, which has no objects but the judge's.
type cluster struct {
	client  kubernetes.Interface
	target  string // its host and port
	config  clientcmdapi.Config
	run     string
	lease   *lease
	outages outages
	say     func(string)

	// fail ends the run with an error.
	fail context.CancelCauseFunc
}

// connect takes possession of the cluster that a kubeconfig names, which must be empty. The context that it returns
// ends when the run has to end. The caller calls release.
func connect(ctx context.Context, o *options, say func(string)) (context.Context, *cluster, error) {
	config, rc, err := loadKubeconfig(o.apiServer, o.context)
	if err != nil {
		return nil, nil, fmt.Errorf("--api-server: %w", err)
	}
	c := &cluster{config: *config, run: strings.ToLower(rand.Text()), say: say}
	if c.target, err = hostPort(rc.Host); err != nil {
		return nil, nil, fmt.Errorf("--api-server: %s: %w", o.apiServer, err)
	}
	if c.client, err = kubernetes.NewForConfig(rc); err != nil {
		return nil, nil, fmt.Errorf("--api-server: %s: %w", o.apiServer, err)
	}
	if err := c.take(ctx, families(o.lacks)); err != nil {
		return nil, nil, fmt.Errorf("--api-server: %s: %w", rc.Host, err)
	}
	ctx, c.fail = context.WithCancelCause(ctx)
	c.lease.keep(ctx, c.foreign, c.fail)
	return ctx, c, nil
}

// loadKubeconfig returns the part of a kubeconfig that a context needs, without references to other files, and what it
// says to clients.
func loadKubeconfig(path, name string) (*clientcmdapi.Config, *rest.Config, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, nil, err
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{CurrentContext: name})
	config, err := loader.RawConfig()
	if err != nil {
		return nil, nil, err
	}
	if name != "" {
		config.CurrentContext = name
	}
	if err := errors.Join(clientcmdapi.MinifyConfig(&config), clientcmdapi.FlattenConfig(&config)); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, c := range config.Clusters {
		if c.ProxyURL != "" {
			return nil, nil, fmt.Errorf("%s: the API server is behind a proxy (proxy-url), which is not supported", path)
		}
	}
	rc, err := loader.ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	rc.QPS, rc.Timeout, rc.UserAgent = -1, requestTimeout, objectName
	rc.WarningHandler = rest.NoWarnings{}
	return &config, rc, nil
}

const (
	// requestTimeout bounds each request.
	requestTimeout = 15 * time.Second
	// settleTimeout is how long the cluster may take until it does without what has gone, and with what is new.
	settleTimeout = 45 * time.Second
)

// hostPort returns what to dial for a URL.
func hostPort(server string) (string, error) {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	u, err := url.Parse(server)
	if err != nil {
		return "", err
	}
	port := u.Port()
	switch {
	case u.Hostname() == "":
		return "", fmt.Errorf("%q names no host", server)
	case port == "" && u.Scheme == "https":
		port = "443"
	case port == "":
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// families are those that the proxy does not lack.
func families(lacks string) []model.Family {
	var list []model.Family
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		if !strings.Contains(lacks, f.String()) {
			list = append(list, f)
		}
	}
	return list
}

// take makes sure that nobody else uses the cluster, removes what a judge that was killed has left behind, and gives the
// cluster the addresses that the suite's Services have.
func (c *cluster) take(ctx context.Context, families []model.Family) error {
	version, err := c.client.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	if err := c.mayAll(ctx); err != nil {
		return err
	}
	if err := c.foreign(ctx); err != nil {
		return err
	}
	if c.lease, err = takeLease(ctx, c.client, c.run, c.say); err != nil {
		return err
	}
	err = c.foreign(ctx) // nothing has come while it waited
	if err == nil {
		err = c.removeAll(ctx, runLabel)
	}
	if err == nil {
		err = c.addServiceCIDR(ctx, families)
	}
	if err != nil {
		c.release()
		return err
	}
	c.say("the API server has version " + version.GitVersion)
	return nil
}

// mayAll returns an error that says what the user of the kubeconfig may not do.
func (c *cluster) mayAll(ctx context.Context) error {
	var missing []string
	for _, r := range []struct{ group, resource, sub, verbs string }{
		{"", "services", "", "list create get update delete"}, {"", "services", "status", "update"},
		{"", "nodes", "", "list create get update delete"}, {"", "nodes", "status", "update"},
		{"discovery.k8s.io", "endpointslices", "", "list create get update delete"},
		{"networking.k8s.io", "servicecidrs", "", "list create delete"},
		{"coordination.k8s.io", "leases", "", "create get update delete"},
	} {
		for _, verb := range strings.Fields(r.verbs) {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: r.group, Resource: r.resource,
					Subresource: r.sub, Verb: verb}}}
			reviews := c.client.AuthorizationV1().SelfSubjectAccessReviews()
			answer, err := reviews.Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if !answer.Status.Allowed {
				missing = append(missing, verb+" "+strings.TrimSuffix(r.resource+"/"+r.sub, "/"))
			}
		}
	}
	if missing != nil {
		return fmt.Errorf("the user of the kubeconfig may not: %s", strings.Join(missing, ", "))
	}
	return nil
}

// foreign returns an error that names a Service or a Node that the judge has not made: the cluster is in use.
func (c *cluster) foreign(ctx context.Context) error {
	services, err := c.client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range services.Items {
		if _, ours := s.Labels[runLabel]; !ours && s.Namespace+"/"+s.Name != "default/kubernetes" {
			return &foreignError{fmt.Sprintf("Service %s/%s", s.Namespace, s.Name)}
		}
	}
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		if _, ours := n.Labels[runLabel]; !ours {
			return &foreignError{"Node " + n.Name}
		}
	}
	return nil
}

// foreignError names an object that is not the judge's.
type foreignError struct{ object string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("the cluster has a %s, so somebody uses it. The judge needs a cluster of its own: "+
		"an API server without Nodes, and without Services but default/kubernetes", e.object)
}

// addServiceCIDR has the API server hand out the cluster IPs of the suite, and returns when it does.
func (c *cluster) addServiceCIDR(ctx context.Context, families []model.Family) error {
	env := conformance.Env{Families: families}
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: objectName, Labels: c.labels()}}
	var ips, ranges []string
	for _, p := range env.ServiceCIDRs() {
		ranges = append(ranges, p.String())
		ips = append(ips, p.Addr().Next().Next().String())
	}
	cidr.Spec.CIDRs = ranges
	_, err := c.client.NetworkingV1().ServiceCIDRs().Create(ctx, cidr, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the ServiceCIDR %s with %s: %w", objectName, strings.Join(ranges, " and "), err)
	}
	policy := corev1.IPFamilyPolicySingleStack
	if len(ips) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: objectName, Namespace: metav1.NamespaceDefault, Labels: c.labels()},
		Spec: corev1.ServiceSpec{ClusterIP: ips[0], ClusterIPs: ips, IPFamilyPolicy: &policy,
			Ports: []corev1.ServicePort{{Port: 80}}}}
	services := c.client.CoreV1().Services(metav1.NamespaceDefault)
	err = until(ctx, func() error { // the API server notices the range a moment later
		_, err := services.Create(ctx, service, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("the API server refuses a Service with the cluster IPs %s, although there is a ServiceCIDR for "+
			"them. A server with one family needs --lacks with the other: %w", strings.Join(ips, " and "), err)
	}
	return services.Delete(ctx, objectName, metav1.DeleteOptions{})
}

// until calls a function until it succeeds, for some time.
func until(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	return repeat(ctx, f, func(err error) bool { return err == nil })
}

// repeat calls a function until its error is the last one, or the context ends, and returns that error.
func repeat(ctx context.Context, f func() error, last func(error) bool) error {
	var before error
	for {
		err := f()
		if err != nil && before != nil && ctx.Err() != nil {
			return before // it says more than that the time is over
		}
		if last(err) {
			return err
		}
		before = err
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (c *cluster) labels() map[string]string { return map[string]string{runLabel: c.run} }

// clear returns an error if the cluster hands out cluster IPs that belong to others in the suite's network.
func (c *cluster) clear(ctx context.Context, env conformance.Env) error {
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
				continue // nothing has an address in it
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

// removeAll deletes all objects that a label selects, and waits until they are gone.
func (c *cluster) removeAll(ctx context.Context, selector string) error {
	return until(ctx, func() error {
		left, err := c.removeOnce(ctx, selector)
		if err == nil && left > 0 {
			err = fmt.Errorf("%d objects of a judge are still there", left)
		}
		return err
	})
}

// removeOnce deletes all objects that a label selects, and returns how many there were.
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
	for i := range cidrs.Items { // last: it cannot go while Services have its addresses
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

// release removes everything that this run has made, and lets the next judge in.
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
