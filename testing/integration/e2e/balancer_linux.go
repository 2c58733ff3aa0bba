package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// balancer stands in for a load balancer: each Service of type LoadBalancer gets an address per family, and the machine
// routes it to the nodes that may receive its traffic, each flow to one node. These are all nodes or, with the external
// traffic policy Local, those whose health check says that they have endpoints.
type balancer struct {
	m      *machine
	bridge netlink.Link
	given  map[types.UID]int // the number in the addresses of a Service
	routes map[string][]string
}

// interval is how often a load balancer looks at Services and their health checks.
const interval = time.Second

// balance runs the load balancer until ctx is done.
func (m *machine) balance(ctx context.Context) error {
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", bridge, err)
	}
	b := &balancer{m: m, bridge: link, given: map[types.UID]int{}, routes: map[string][]string{}}
	for {
		if err := b.update(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "load balancer:", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// update brings addresses and routes up to date.
func (b *balancer) update(ctx context.Context) error {
	all, err := b.m.cluster.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	routes := map[string][]string{}
	for i := range all.Items {
		s := &all.Items[i]
		addresses := b.addresses(s)
		if err := b.publish(ctx, s, addresses); err != nil {
			return fmt.Errorf("status of Service %s/%s: %w", s.Namespace, s.Name, err)
		}
		if len(addresses) == 0 {
			continue
		}
		nodes := b.nodes(ctx, s)
		for _, address := range addresses {
			family := 0
			if net.ParseIP(address).To4() == nil {
				family = 1
			}
			for _, n := range nodes {
				routes[address] = append(routes[address], n.IPs[family])
			}
		}
	}
	return b.route(routes)
}

// addresses returns the addresses of a Service, none if it is of another type or another load balancer's.
func (b *balancer) addresses(s *corev1.Service) []string {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.Spec.LoadBalancerClass != nil || s.DeletionTimestamp != nil {
		return nil
	}
	number, given := b.given[s.UID]
	if !given {
		number = len(b.given) + 1
		b.given[s.UID] = number
	}
	var out []string
	for _, family := range s.Spec.IPFamilies {
		if family == corev1.IPv4Protocol {
			out = append(out, fmt.Sprintf("192.168.%d.%d", 200+number/250, 1+number%250))
		} else {
			out = append(out, fmt.Sprintf("fd00:200::%x", number))
		}
	}
	return out
}

// publish writes the addresses into the status of a Service.
func (b *balancer) publish(ctx context.Context, s *corev1.Service, addresses []string) error {
	mode := corev1.LoadBalancerIPModeVIP
	var want []corev1.LoadBalancerIngress
	for _, address := range addresses {
		want = append(want, corev1.LoadBalancerIngress{IP: address, IPMode: &mode})
	}
	if len(want) == 0 && (len(s.Status.LoadBalancer.Ingress) == 0 || s.Spec.LoadBalancerClass != nil) ||
		reflect.DeepEqual(want, s.Status.LoadBalancer.Ingress) {
		return nil
	}
	s = s.DeepCopy()
	s.Status.LoadBalancer.Ingress = want
	_, err := b.m.cluster.Client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
	return err
}

// nodes returns the nodes that may receive the traffic of a Service.
func (b *balancer) nodes(ctx context.Context, s *corev1.Service) []*node {
	if s.Spec.HealthCheckNodePort == 0 {
		return b.m.nodes
	}
	var out []*node
	for _, n := range b.m.nodes {
		if healthy(ctx, "http://"+net.JoinHostPort(n.IPs[0], strconv.Itoa(int(s.Spec.HealthCheckNodePort)))) {
			out = append(out, n)
		}
	}
	return out
}

func healthy(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, interval)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// route adds the routes to addresses via nodes, and removes the others that it has added.
func (b *balancer) route(routes map[string][]string) error {
	for address := range b.routes {
		if len(routes[address]) == 0 {
			if err := netlink.RouteDel(&netlink.Route{Dst: oneAddress(address)}); err != nil {
				return fmt.Errorf("remove the route to %s: %w", address, err)
			}
			delete(b.routes, address)
		}
	}
	for address, via := range routes {
		if reflect.DeepEqual(b.routes[address], via) {
			continue
		}
		r := &netlink.Route{Dst: oneAddress(address)}
		for _, gateway := range via {
			r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: b.bridge.Attrs().Index,
				Gw: net.ParseIP(gateway)})
		}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("route to %s: %w", address, err)
		}
		b.routes[address] = via
	}
	return nil
}

// oneAddress is the network of one address.
func oneAddress(address string) *net.IPNet {
	ip := net.ParseIP(address)
	if four := ip.To4(); four != nil {
		ip = four
	}
	return &net.IPNet{IP: ip, Mask: net.CIDRMask(8*len(ip), 8*len(ip))}
}
