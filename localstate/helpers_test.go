package localstate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/model"
)

const (
	namespace = "ns"
	me        = "me"    // the name of this node
	other     = "other" // the name of another node
)

// world is a State with a receiver that checks every call.
type world struct {
	t     testing.TB
	state *State
	got   *mirror

	flushes bool // after each object
}

// newWorld makes a State for node "me", hands it the objects and flushes it.
func newWorld(t testing.TB, objects ...metav1.Object) *world {
	t.Helper()
	return newWorldWith(t, Options{NodeName: me}, objects...)
}

// allOptions takes Options, ClusterOptions or both.
func allOptions(opts any) options {
	switch opts := opts.(type) {
	case Options:
		return options{Options: opts}
	case ClusterOptions:
		return options{ClusterOptions: opts}
	}
	return opts.(options)
}

// newWorldWith is newWorld with options as allOptions takes them.
func newWorldWith(t testing.TB, opts any, objects ...metav1.Object) *world {
	t.Helper()
	all := allOptions(opts)
	state, err := New(klog.NewContext(t.Context(), klog.Logger{}), all.Options, all.ClusterOptions)
	require.NoError(t, err)
	w := &world{t: t, state: state, got: newMirror()}
	w.set(objects...)
	w.flush()
	return w
}

// set hands objects over, without a flush. It returns whether that changed anything relevant.
func (w *world) set(objects ...metav1.Object) bool {
	changed := false
	for _, obj := range objects {
		changed = w.apply(obj, false) || changed
	}
	return changed
}

// delete deletes objects, without a flush. It returns whether that changed anything relevant.
func (w *world) delete(objects ...metav1.Object) bool {
	changed := false
	for _, obj := range objects {
		changed = w.apply(obj, true) || changed
	}
	return changed
}

func (w *world) apply(obj metav1.Object, deleted bool) bool {
	w.t.Helper()
	changed, err := w.state.Apply(obj, deleted)
	require.NoError(w.t, err)
	if w.flushes {
		w.flush()
	}
	return changed
}

// flush flushes, and fails the test if the calls violate the contract of sink.Sink.
func (w *world) flush() Changes {
	w.t.Helper()
	for i, svc := range w.state.dirty {
		require.NotContains(w.t, w.state.dirty[:i], svc, "it is worked out twice")
	}
	w.got.startWave()
	changes := w.state.Flush(w.got)
	require.Empty(w.t, w.got.endWave(changes), "the wave breaks the contract:\n%s", w.got)
	require.Equal(w.t, Pending{}, w.state.Pending())
	return changes
}

// change hands objects over and returns the calls of the flush that follows.
func (w *world) change(objects ...metav1.Object) []string {
	w.t.Helper()
	w.set(objects...)
	w.flush()
	return w.got.callTexts()
}

func (w *world) service(name string) *model.Service {
	return w.got.services[model.ServiceName{Namespace: namespace, Name: name}]
}

// mustService is service for one that has to exist.
func (w *world) mustService(name string) *model.Service {
	w.t.Helper()
	svc := w.service(name)
	require.NotNil(w.t, svc, "service %s is not handed over", name)
	return svc
}

// routes returns the IPv4 routes of the only port of a service.
func (w *world) routes(name string) model.Routes {
	w.t.Helper()
	svc := w.mustService(name)
	require.Len(w.t, svc.Ports, 1)
	return svc.Ports[0].Routes.IPv4
}

// endpoints lists the endpoints of a service, in order of their key, as "address:port sets", with "port/protocol "
// before it if the service has several ports.
func (w *world) endpoints(name string) []string {
	list := []string{}
	svc := w.service(name)
	for _, e := range w.got.sortedEndpoints() {
		if e.Port.Service.Name != name || e.Port.Service.Namespace != namespace {
			continue
		}
		text := fmt.Sprintf("%v %v", e.Target, e.Sets)
		if svc != nil && len(svc.Ports) > 1 {
			text = fmt.Sprintf("%s/%v %s", e.Port.Port, e.Port.Protocol, text)
		}
		list = append(list, text)
	}
	return list
}

// in lists the endpoints of a service that are in one set, as "address:port".
func (w *world) in(set model.EndpointSets, name string) []string {
	list := []string{}
	for _, e := range w.got.sortedEndpoints() {
		if e.Port.Service.Name == name && e.Sets.Has(set) {
			list = append(list, e.Target.String())
		}
	}
	return list
}

func (w *world) clusterSet(name string) []string { return w.in(model.ClusterSet, name) }
func (w *world) localSet(name string) []string   { return w.in(model.LocalSet, name) }

// Objects

type serviceOption func(*corev1.Service)

// aService is a plain service: ns/NAME with cluster IP 10.0.0.1 and a TCP port "http" 80.
func aService(name string, options ...serviceOption) *corev1.Service {
	obj := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{tcp("http", 80)}},
	}
	clusterIPs("10.0.0.1")(obj)
	for _, option := range options {
		option(obj)
	}
	return obj
}

func tcp(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: number}
}

func udp(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolUDP, Port: number}
}

func sctp(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolSCTP, Port: number}
}

// clusterIPs sets the cluster IPs and their families, primary first.
func clusterIPs(ips ...string) serviceOption {
	return func(obj *corev1.Service) {
		obj.Spec.ClusterIP, obj.Spec.ClusterIPs, obj.Spec.IPFamilies = ips[0], ips, nil
		for _, ip := range ips {
			family := corev1.IPv4Protocol
			if strings.Contains(ip, ":") {
				family = corev1.IPv6Protocol
			}
			obj.Spec.IPFamilies = append(obj.Spec.IPFamilies, family)
		}
	}
}

func ports(list ...corev1.ServicePort) serviceOption {
	return func(obj *corev1.Service) { obj.Spec.Ports = list }
}

func typed(t corev1.ServiceType) serviceOption {
	return func(obj *corev1.Service) { obj.Spec.Type = t }
}

func nodePort(number int32) serviceOption {
	return func(obj *corev1.Service) {
		obj.Spec.Type, obj.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, number
	}
}

// vips makes it a LoadBalancer service without node ports.
func vips(ips ...string) serviceOption {
	return func(obj *corev1.Service) {
		obj.Spec.Type = corev1.ServiceTypeLoadBalancer
		for _, ip := range ips {
			obj.Status.LoadBalancer.Ingress = append(obj.Status.LoadBalancer.Ingress,
				corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func externalIPs(ips ...string) serviceOption {
	return func(obj *corev1.Service) { obj.Spec.ExternalIPs = ips }
}

func sourceRanges(cidrs ...string) serviceOption {
	return func(obj *corev1.Service) { obj.Spec.LoadBalancerSourceRanges = cidrs }
}

func externalLocal(obj *corev1.Service) {
	obj.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func internalLocal(obj *corev1.Service) {
	obj.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
}

func healthCheck(port int32) serviceOption {
	return func(obj *corev1.Service) { obj.Spec.HealthCheckNodePort = port }
}

type sliceOption func(*discoveryv1.EndpointSlice)

// aSlice is a slice of service "web" in its first address family, with port "http" 8080.
func aSlice(name string, options ...sliceOption) *discoveryv1.EndpointSlice {
	obj := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{slicePortObject("http", corev1.ProtocolTCP, 8080)},
	}
	for _, option := range options {
		option(obj)
	}
	return obj
}

func slicePortObject(name string, protocol corev1.Protocol, number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number}
}

func ofService(name string) sliceOption {
	return func(obj *discoveryv1.EndpointSlice) { obj.Labels[discoveryv1.LabelServiceName] = name }
}

func ofType(t discoveryv1.AddressType) sliceOption {
	return func(obj *discoveryv1.EndpointSlice) { obj.AddressType = t }
}

func slicePorts(list ...discoveryv1.EndpointPort) sliceOption {
	return func(obj *discoveryv1.EndpointSlice) { obj.Ports = list }
}

func annotated(key, value string) sliceOption {
	return func(obj *discoveryv1.EndpointSlice) { metav1.SetMetaDataAnnotation(&obj.ObjectMeta, key, value) }
}

type endpointObject = discoveryv1.Endpoint

type endpointOption func(*endpointObject)

// ep adds an endpoint to a slice. It is ready, serving and on no node unless the options change that.
func ep(address string, options ...endpointOption) sliceOption {
	e := discoveryv1.Endpoint{Addresses: []string{address}}
	conditions(true, true, false)(&e)
	for _, option := range options {
		option(&e)
	}
	return func(obj *discoveryv1.EndpointSlice) { obj.Endpoints = append(obj.Endpoints, e) }
}

func conditions(ready, serving, terminating bool) endpointOption {
	return func(e *discoveryv1.Endpoint) {
		e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	}
}

var (
	unready          = conditions(false, false, false)
	servingUnready   = conditions(false, true, false)
	draining         = conditions(false, true, true)
	dead             = conditions(false, false, true)
	readyTerminating = conditions(true, true, true) // publishNotReadyAddresses
)

func onNode(name string) endpointOption {
	return func(e *discoveryv1.Endpoint) { e.NodeName = &name }
}

var local = onNode(me)

func forNodes(names ...string) endpointOption {
	return func(e *discoveryv1.Endpoint) {
		if e.Hints == nil {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		for _, name := range names {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: name})
		}
	}
}

func forZones(names ...string) endpointOption {
	return func(e *discoveryv1.Endpoint) {
		if e.Hints == nil {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		for _, name := range names {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: name})
		}
	}
}

type nodeOption func(*corev1.Node)

// aNode is this node.
func aNode(options ...nodeOption) *corev1.Node {
	obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: me}}
	for _, option := range options {
		option(obj)
	}
	return obj
}

func inZone(zone string) nodeOption {
	return func(obj *corev1.Node) { metav1.SetMetaDataLabel(&obj.ObjectMeta, corev1.LabelTopologyZone, zone) }
}

func internalIPs(ips ...string) nodeOption {
	return func(obj *corev1.Node) {
		for _, ip := range ips {
			obj.Status.Addresses = append(obj.Status.Addresses,
				corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
		}
	}
}

func podCIDRs(cidrs ...string) nodeOption {
	return func(obj *corev1.Node) { obj.Spec.PodCIDRs = cidrs }
}

func aServiceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// texts turns values into their text.
func texts[T fmt.Stringer](list []T) []string {
	out := []string{}
	for _, v := range list {
		out = append(out, v.String())
	}
	return out
}

// forEachOrder calls f with every order of a list.
func forEachOrder[T any](list []T, f func([]T)) {
	var permute func(done, rest []T)
	permute = func(done, rest []T) {
		if len(rest) == 0 {
			f(done)
			return
		}
		for i := range rest {
			permute(append(slices.Clone(done), rest[i]), slices.Delete(slices.Clone(rest), i, i+1))
		}
	}
	permute(nil, list)
}
