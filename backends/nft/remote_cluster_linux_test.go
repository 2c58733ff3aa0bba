package nft_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// cluster is a watch.Source whose objects are made of the state of one node: they are such that this is its state.
type cluster struct {
	changes chan change
	known   map[string]metav1.Object
}

type change struct {
	changes []watch.Change
	done    chan struct{}
}

// Run implements watch.Source.
func (c *cluster) Run(ctx context.Context, _ string, h watch.Handler) error {
	for synced := false; ; {
		select {
		case x := <-c.changes:
			h.Update(x.changes...)
			if !synced { // there is a node before anything is sent
				synced = true
				h.Synced()
			}
			close(x.done)
		case <-ctx.Done():
			return nil
		}
	}
}

// become makes the cluster one in which the node has a state.
func (c *cluster) become(ctx context.Context, state *sink.Recorder) error {
	objects := objectsOf(state)
	var x change
	for _, key := range slices.Sorted(maps.Keys(c.known)) {
		if objects[key] == nil {
			x.changes = append(x.changes, watch.Change{Object: c.known[key], Deleted: true})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		x.changes = append(x.changes, watch.Change{Object: objects[key]})
	}
	x.done = make(chan struct{})
	select {
	case c.changes <- x:
		<-x.done
		c.known = objects
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nodeOptions are the options by which a node gets a state.
func nodeOptions(state *sink.Recorder) localstate.Options {
	local := state.Node().LocalPods
	o := localstate.Options{NodeName: state.Node().Name, DetectLocal: localstate.DetectLocal{
		ClusterCIDRs: local.CIDRs, Bridge: local.Bridge, InterfacePrefix: local.InterfacePrefix}}
	for _, s := range state.Services() {
		for _, p := range s.Ports {
			for _, f := range model.Families() {
				o.MasqueradeAll = o.MasqueradeAll || p.Routes.At(f).ClusterIP.Masquerade == model.MasqueradeAlways
			}
		}
	}
	return o
}

const (
	zone      = "zone-of-the-node"
	elsewhere = "another-zone"
)

// objectsOf returns the objects of a cluster in which the node has a state, by a key for each.
func objectsOf(state *sink.Recorder) map[string]metav1.Object {
	n := state.Node()
	var ips, cidrs, services []string
	for _, ip := range n.IPs {
		ips = append(ips, ip.String())
	}
	for _, cidr := range n.PodCIDRs {
		cidrs = append(cidrs, cidr.String())
	}
	for _, cidr := range n.ServiceCIDRs {
		services = append(services, cidr.String())
	}
	objects := map[string]metav1.Object{
		"node":         kube.Node(n.Name).Zone(zone).InternalIP(ips...).PodCIDR(cidrs...).Build(),
		"service CIDR": kube.ServiceCIDR("kubernetes", services...),
	}
	endpoints := map[model.PortName][]*model.Endpoint{}
	for _, e := range state.Endpoints() {
		endpoints[e.Port] = append(endpoints[e.Port], e)
	}
	for _, s := range state.Services() {
		objects[s.Name.String()] = serviceOf(s)
		for _, p := range s.Ports {
			for _, f := range model.Families() {
				for _, slice := range slicesOf(s, p, f, endpoints[s.PortName(p)]) {
					objects["slice "+slice.Name] = slice
				}
			}
		}
	}
	return objects
}

func serviceOf(s *model.Service) metav1.Object {
	b := kube.Service(s.Name.String())
	if !s.Created.IsZero() {
		b.Created(s.Created)
	}
	var ips []string
	for _, ip := range s.ClusterIPs {
		ips = append(ips, ip.String())
	}
	b.ClusterIP(ips...)
	for _, p := range s.Ports {
		switch p.Protocol {
		case model.TCP:
			b.Port(p.Name, int32(p.Port))
		case model.UDP:
			b.UDPPort(p.Name, int32(p.Port))
		case model.SCTP:
			b.SCTPPort(p.Name, int32(p.Port))
		}
		if p.NodePort != 0 {
			b.NodePort(int32(p.NodePort))
		}
	}
	for _, ip := range s.ExternalIPs {
		b.ExternalIP(ip.String())
	}
	for _, ip := range s.LoadBalancerIPs {
		b.LoadBalancerIP(ip.String())
	}
	for _, r := range s.LoadBalancerSourceRanges {
		b.SourceRange(r.String())
	}
	if s.InternalTrafficPolicy == model.TrafficPolicyLocal {
		b.InternalLocal()
	}
	if s.ExternalTrafficPolicy == model.TrafficPolicyLocal {
		b.ExternalLocal()
	}
	if s.HealthCheck != nil {
		b.HealthCheckNodePort(int32(s.HealthCheck.NodePort))
	}
	if s.SessionAffinityTimeout != 0 {
		b.Affinity(int32(s.SessionAffinityTimeout.Seconds()))
	}
	return b.Build()
}

// slicesOf returns the slices of a port in a family, one for each target port.
func slicesOf(s *model.Service, p model.ServicePort, f model.Family,
	endpoints []*model.Endpoint) []*discoveryv1.EndpointSlice {
	routes := *p.Routes.At(f)
	byTarget := map[uint16]*kube.EndpointSliceBuilder{}
	usable, filtered := false, false
	for _, e := range endpoints {
		if e.Family() == f {
			usable = usable || e.Serving
			filtered = filtered || e.Ready && routes.Sets().Has(model.ClusterSet) && !e.Sets.Has(model.ClusterSet)
		}
	}
	slice := func(target uint16) *kube.EndpointSliceBuilder {
		if byTarget[target] == nil {
			name := strings.ToLower(fmt.Sprintf("%s-%s-%v-%v-%d", s.Name.Name, p.Name, p.Protocol, f, target))
			b := kube.EndpointSlice(s.Name.String()).Name(name)
			if f == model.IPv6 {
				b.AddressType(discoveryv1.AddressTypeIPv6)
			}
			b.Port(p.Name, int32(target)) // its protocol comes at the end
			byTarget[target] = b
		}
		return byTarget[target]
	}
	for _, e := range endpoints {
		if e.Family() != f {
			continue
		}
		b := slice(e.Target.Port()).Endpoint(e.Target.Addr().String()).OnNode(e.Node)
		switch {
		case !e.Serving:
			b.NotReady()
		case e.Terminating:
			b.Terminating()
		}
		// All endpoints have hints, or none counts.
		if filtered && e.Ready && e.Sets.Has(model.ClusterSet) {
			b.ForZones(zone)
		} else if filtered {
			b.ForZones(elsewhere)
		}
	}
	// A brain does not send a node the endpoints that are in none of its sets, only that there are some.
	if hidden := routes.ClusterIP.Empty == model.Drop || routes.External.Empty == model.Drop; hidden && !usable &&
		!routes.Sets().Has(model.ClusterSet) {
		far := map[model.Family]string{model.IPv4: "192.0.2.250", model.IPv6: "2001:db8::250"}
		slice(1).Endpoint(far[f]).OnNode("far")
	}
	var out []*discoveryv1.EndpointSlice
	for _, b := range byTarget {
		built := b.Build()
		built.Ports[0].Protocol = ptr.To(corev1.Protocol(p.Protocol.String()))
		out = append(out, built)
	}
	return out
}

// differenceOf says in what two states differ, but for what the suite leaves out, and "" if in nothing.
func differenceOf(want, got *sink.Recorder) string {
	if got.Node() == nil {
		return "nothing has come"
	}
	node := *got.Node()
	node.Zone = want.Node().Zone
	if !want.Node().Equal(&node) {
		return fmt.Sprintf("want %v\ngot  %v", want.Node(), &node)
	}
	wants, gots := want.Services(), got.Services()
	wantEndpoints, gotEndpoints := want.Endpoints(), got.Endpoints()
	for name, s := range wants {
		if g := gots[name]; g == nil || !plain(s, g).Equal(plain(g, s)) {
			return fmt.Sprintf("want %v\ngot  %v", s, g)
		}
	}
	for key, e := range wantEndpoints {
		if g := gotEndpoints[key]; !e.Equal(g) {
			return fmt.Sprintf("want %v\ngot  %v", e, g)
		}
	}
	if len(gots) != len(wants) || len(gotEndpoints) != len(wantEndpoints) {
		return fmt.Sprintf("want %d services and %d endpoints, got %d and %d", len(wants), len(wantEndpoints),
			len(gots), len(gotEndpoints))
	}
	return ""
}

// plain returns a service without what is of no use for traffic, and without the VIPs among the source ranges, which
// localstate adds where the node is in one of them (S26), unless another service has them there, too.
func plain(s, other *model.Service) *model.Service {
	p := *s
	p.Type = 0
	p.Ports = slices.Clone(p.Ports)
	for i := range p.Ports {
		p.Ports[i].TargetPort = ""
	}
	p.LoadBalancerSourceRanges = nil
	for _, r := range s.LoadBalancerSourceRanges {
		if !r.IsSingleIP() || !slices.Contains(s.LoadBalancerIPs, r.Addr()) ||
			slices.Contains(other.LoadBalancerSourceRanges, r) {
			p.LoadBalancerSourceRanges = append(p.LoadBalancerSourceRanges, r)
		}
	}
	return &p
}
