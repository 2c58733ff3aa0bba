package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// runLabel labels everything that the judge creates in a cluster. Its value identifies the run.
const runLabel = "kube-proxy-lib.sigs.k8s.io/judge"

// objectName is the name of the judge's own objects: its Lease, which excludes other judges, and its ServiceCIDR.
const objectName = "kube-proxy-lib-judge"

// cluster is a real API server, which has no objects except the judge's.
type cluster struct {
	client  kubernetes.Interface
	target  string // the API server's host and port
	config  clientcmdapi.Config
	run     string
	lease   *lease
	outages outages
	say     func(string)

	// fail ends the run with an error.
	fail context.CancelCauseFunc
	// taken is called when the cluster's lease has been taken, unless it is nil.
	taken func()
}

// connect takes exclusive possession of the kubeconfig's cluster, which must be empty. The returned context ends when
// the run has to end. The caller must call release.
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
	ctx, c.fail = context.WithCancelCause(ctx)
	// At once, because what follows may take longer than a lease lasts.
	c.taken = func() { c.lease.keep(ctx, c.foreign, c.fail) }
	if err := c.take(ctx, families(o.lacks)); err != nil {
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
			err = cause
		}
		c.fail(err)
		return nil, nil, fmt.Errorf("--api-server: %s: %w", rc.Host, err)
	}
	return ctx, c, nil
}

// loadKubeconfig returns the part of a kubeconfig that a context needs, without references to other files, and the
// resulting client configuration.
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
	// settleTimeout limits the time until the cluster has removed deleted objects and serves new ones.
	settleTimeout = 45 * time.Second
)

// hostPort returns the address to dial for a URL.
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

// families returns the families that the proxy does not lack.
func families(lacks string) []model.Family {
	var list []model.Family
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		if !strings.Contains(lacks, f.String()) {
			list = append(list, f)
		}
	}
	return list
}

// take checks that no other program uses the cluster, removes what a killed judge has left, and adds the suite's
// cluster IP ranges to the cluster.
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
	if c.taken != nil {
		c.taken()
	}
	err = c.foreign(ctx) // again, because there may be new objects
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

// mayAll returns an error that says what the kubeconfig's user may not do.
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

// foreign returns an error if there is a Service or a Node that the judge did not create: the cluster is in use.
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

// foreignError names an object that the judge did not create.
type foreignError struct{ object string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("the cluster has a %s, so somebody uses it. The judge needs a cluster of its own: "+
		"an API server without Nodes, and without Services but default/kubernetes", e.object)
}

// addServiceCIDR adds the suite's cluster IP ranges, and returns when the API server allocates from them.
func (c *cluster) addServiceCIDR(ctx context.Context, families []model.Family) error {
	env := program.Node{Families: families}
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
	err = until(ctx, func() error { // the API server notices the range with a delay
		_, err := services.Create(ctx, service, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("the API server refuses a Service with the cluster IPs %s, although there is a ServiceCIDR for "+
			"them. A server with one family needs --lacks with the other: %w", strings.Join(ips, " and "), err)
	}
	return services.Delete(ctx, objectName, metav1.DeleteOptions{})
}

// until calls a function until it succeeds, at most for settleTimeout.
func until(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	return repeat(ctx, f, func(err error) bool { return err == nil })
}

// repeat calls a function until last accepts its error or the context ends, and returns the error.
func repeat(ctx context.Context, f func() error, last func(error) bool) error {
	var before error
	for {
		err := f()
		if err != nil && before != nil && ctx.Err() != nil {
			return before // more useful than the context's error
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
