package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// store has the objects of one node in a real API server, which the proxy reaches through a relay.
type store struct {
	*cluster
	relay      *testkit.Relay
	url        string
	kubeconfig []byte
	made       map[string]metav1.Object // existing objects, by kind and name
	// healthPorts are the health check node ports of Services.
	healthPorts map[string]int32
}

// open returns the objects of a node. The proxy connects to the listener.
func (c *cluster) open(env program.Node, listener net.Listener) (objects, error) {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	if err := c.outages.retry(ctx, func() error { return c.clear(ctx, env) }); err != nil {
		return nil, err
	}
	s := &store{cluster: c, made: map[string]metav1.Object{}, healthPorts: map[string]int32{}}
	config := c.config.DeepCopy()
	for _, to := range config.Clusters { // the one of the context
		host, _, err := net.SplitHostPort(c.target)
		if err != nil {
			return nil, err
		}
		s.url = "http://" + listener.Addr().String()
		if strings.HasPrefix(to.Server, "https:") {
			s.url = "https://" + listener.Addr().String()
			if to.TLSServerName == "" && !to.InsecureSkipTLSVerify {
				to.TLSServerName = host // the host of the server's certificate
			}
		}
		if u, err := url.Parse(to.Server); err == nil {
			s.url += strings.TrimSuffix(u.Path, "/")
		}
		to.Server = s.url
	}
	var err error
	if s.kubeconfig, err = clientcmd.Write(*config); err != nil {
		return nil, err
	}
	s.relay = testkit.NewRelay(listener, "tcp", c.target, c.outages.note)
	return s, nil
}

func (s *store) client() (url string, kubeconfig []byte) { return s.url, s.kubeconfig }

// Requests implements objects.
func (s *store) Requests() string {
	return fmt.Sprintf("what its audit log says, on %d connections", s.relay.Connections())
}

// Disturbed implements objects.
func (s *store) Disturbed() error { return s.outages.take() }

// close implements objects.
func (s *store) close() {
	s.relay.Close()
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	for _, o := range s.made {
		_ = s.outages.retry(ctx, func() error { return s.remove(ctx, o) }) // otherwise the end of the run removes it
	}
}

// Put implements objects. An API server does not give a Service addresses or ports that another one still has, and does
// not change its first cluster IP. So objects that it rejects are deleted and created again at the end.
func (s *store) Put(ctx context.Context, set, deleted []metav1.Object) error {
	ended := make(chan error, 1)
	go func() { ended <- s.put(ctx, set, deleted) }() // this thread is in the node's namespace
	return <-ended
}

func (s *store) put(ctx context.Context, set, deleted []metav1.Object) error {
	var again []metav1.Object
	for _, o := range set {
		err := s.set(ctx, o)
		var refused *program.RefusedError
		switch {
		case errors.As(err, &refused):
			again = append(again, o)
		case err != nil:
			return err
		}
	}
	for _, o := range append(deleted[:len(deleted):len(deleted)], again...) {
		if err := s.try(ctx, func(ctx context.Context) error { return s.remove(ctx, o) }); err != nil {
			return fmt.Errorf("delete %s: %w", describe(o), err)
		}
		delete(s.made, describe(o))
	}
	for _, o := range again {
		if err := s.set(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// describe names an object for messages.
func describe(o metav1.Object) string {
	kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*v1.")
	if o.GetNamespace() == "" {
		return kind + " " + o.GetName()
	}
	return fmt.Sprintf("%s %s/%s", kind, o.GetNamespace(), o.GetName())
}

// set writes an object and its status.
func (s *store) set(ctx context.Context, o metav1.Object) error {
	if t := o.GetCreationTimestamp(); !t.IsZero() {
		return &program.RefusedError{Object: describe(o), Reason: "it notes itself when objects were created"}
	}
	// Not client-go's RetryOnConflict, which returns nil if the context ends in the middle of a request.
	err := s.try(ctx, func(ctx context.Context) (err error) {
		for range 5 { // others may write to it too, such as a proxy that annotates its Node
			if err = s.write(ctx, o); !apierrors.IsConflict(err) {
				break
			}
		}
		return err
	})
	if isRefusal(err) {
		return &program.RefusedError{Object: describe(o), Reason: err.Error()}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", describe(o), err)
	}
	return nil
}

// try calls a function until the API server has answered, or has been unreachable for too long.
func (s *store) try(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	return s.outages.retry(ctx, func() error { return f(ctx) })
}

func (s *store) write(ctx context.Context, o metav1.Object) error {
	switch o := o.(type) {
	case *corev1.Node:
		nodes := s.cluster.client.CoreV1().Nodes()
		saved, err := save(ctx, s, nodes, o.DeepCopy())
		if err == nil {
			saved.Status.Addresses = o.Status.Addresses
			_, err = nodes.UpdateStatus(ctx, saved, metav1.UpdateOptions{})
		}
		return err
	case *corev1.Service:
		return s.writeService(ctx, o.DeepCopy())
	case *discoveryv1.EndpointSlice:
		_, err := save(ctx, s, s.cluster.client.DiscoveryV1().EndpointSlices(o.Namespace), o.DeepCopy())
		return err
	case *networkingv1.ServiceCIDR:
		return nil // the run has its own
	}
	return fmt.Errorf("an object of type %T", o)
}

// The range of health check node ports, above the node ports of the suite.
const firstHealthPort, healthPorts = 32300, 400

// writeService writes a Service with a health check node port. Otherwise the API server would choose one at random,
// possibly the node port of another Service.
func (s *store) writeService(ctx context.Context, o *corev1.Service) error {
	spec := &o.Spec
	if spec.Type == corev1.ServiceTypeLoadBalancer && spec.HealthCheckNodePort == 0 &&
		spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		name := describe(o)
		if s.healthPorts[name] == 0 {
			s.healthPorts[name] = int32(firstHealthPort + len(s.healthPorts)%healthPorts)
		}
		spec.HealthCheckNodePort = s.healthPorts[name]
	}
	services, status := s.cluster.client.CoreV1().Services(o.Namespace), o.Status
	saved, err := save(ctx, s, services, o)
	if err != nil || len(status.LoadBalancer.Ingress)+len(saved.Status.LoadBalancer.Ingress) == 0 {
		return err
	}
	saved.Status.LoadBalancer = status.LoadBalancer
	_, err = services.UpdateStatus(ctx, saved, metav1.UpdateOptions{})
	return err
}

// save creates or updates an object.
func save[T metav1.Object](ctx context.Context, s *store, client interface {
	Create(ctx context.Context, o T, options metav1.CreateOptions) (T, error)
	Update(ctx context.Context, o T, options metav1.UpdateOptions) (T, error)
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
}, o T) (saved T, err error) {
	labels := s.labels()
	for name, value := range o.GetLabels() {
		labels[name] = value
	}
	o.SetLabels(labels)
	if s.made[describe(o)] != nil {
		if saved, err = client.Update(ctx, o, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
			return saved, err
		}
	}
	saved, err = client.Create(ctx, o, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // perhaps an earlier attempt succeeded and its answer was lost
		if saved, err = client.Get(ctx, o.GetName(), metav1.GetOptions{}); err == nil {
			if saved.GetLabels()[runLabel] != s.run {
				return saved, &foreignError{describe(o)}
			}
			saved, err = client.Update(ctx, o, metav1.UpdateOptions{})
		}
	}
	if err == nil {
		s.made[describe(o)] = o
	}
	return saved, err
}

// isRefusal reports whether an API server rejected an object.
func isRefusal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		apierrors.IsRequestEntityTooLargeError(err)
}

// isTransient reports whether an error is due to the API server or the network, not to the request.
func isTransient(err error) bool {
	var foreign *foreignError
	var refused *program.RefusedError
	if err == nil || errors.As(err, &foreign) || errors.As(err, &refused) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
}

// outages records that an API server was unreachable.
type outages struct {
	mu   sync.Mutex
	last error
}

func (o *outages) note(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = err
}

// take returns the recorded error and clears it.
func (o *outages) take() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.last
	o.last = nil
	return err
}

// retry calls a function until the API server has answered.
func (o *outages) retry(ctx context.Context, f func() error) error {
	return repeat(ctx, f, func(err error) bool {
		if !isTransient(err) {
			return true
		}
		o.note(err)
		return false
	})
}
