package localstate_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// printer is a receiver that prints its calls.
type printer struct{}

func (printer) SetNode(n *model.Node)              { fmt.Println("set", n) }
func (printer) SetService(s *model.Service)        { fmt.Println("set", s) }
func (printer) DeleteService(n model.ServiceName)  { fmt.Println("delete service", n) }
func (printer) SetEndpoint(e *model.Endpoint)      { fmt.Println("set", e) }
func (printer) DeleteEndpoint(k model.EndpointKey) { fmt.Println("delete endpoint", k) }

// shop is a service whose traffic stays on the node.
func shop() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shop"},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			ClusterIP:             "10.96.0.1",
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyLocal),
			Ports:                 []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

// shopSlice has an endpoint on each of the nodes: 10.244.0.1 on the first, and so on.
func shopSlice(nodes ...string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shop-x7k2p",
			Labels: map[string]string{discoveryv1.LabelServiceName: "shop"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP),
			Port: ptr.To[int32](8080)}},
	}
	for i, node := range nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.244.0.%d", i+1)}, NodeName: &node})
	}
	return slice
}

// apply tells a state about new or changed objects, as a watch would.
func apply(state *localstate.State, objects ...metav1.Object) {
	for _, object := range objects {
		if _, err := state.Apply(object, false); err != nil {
			fmt.Println(err)
		}
	}
}

func ExampleState() {
	state, err := localstate.New(context.Background(), localstate.Options{NodeName: "node-1"},
		localstate.ClusterOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	apply(state, shop(), shopSlice("node-1", "node-2"))
	state.Flush(printer{})

	fmt.Println("# an endpoint of another node is removed: nothing changes here")
	apply(state, shopSlice("node-1"))
	fmt.Println("changes:", state.Flush(printer{}).Any())

	fmt.Println("# the last endpoint is removed")
	if _, err := state.Apply(shopSlice(), true); err != nil {
		fmt.Println(err)
	}
	state.Flush(printer{})

	// Output:
	// set node node-1
	// set service default/shop cluster-ips=10.96.0.1 internal=Local
	//   http 80/TCP
	//     IPv4 cluster IP: Local, masquerade Never, if empty Drop
	// set endpoint default/shop:http/TCP -> 10.244.0.1:8080 sets=Local node=node-1 local
	// # an endpoint of another node is removed: nothing changes here
	// changes: false
	// # the last endpoint is removed
	// delete endpoint default/shop:http/TCP -> 10.244.0.1:8080
	// set service default/shop cluster-ips=10.96.0.1 internal=Local
	//   http 80/TCP
	//     IPv4 cluster IP: Local, masquerade Never, if empty Reject
}

// Why does nothing go to the endpoint on node-2?
func ExampleState_Explain() {
	state, err := localstate.New(context.Background(), localstate.Options{NodeName: "node-1"},
		localstate.ClusterOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	apply(state, shop(), shopSlice("node-1", "node-2"))

	explanation, known := state.Explain(model.ServiceName{Namespace: "default", Name: "shop"})
	if !known {
		fmt.Println("there is no such service")
		return
	}
	fmt.Print(explanation)
	fmt.Println(explanation.Ports[0].Endpoints[1].Reason)

	// Output:
	// service default/shop
	//   port "http" TCP, IPv4
	//     routes: cluster IP: Local, masquerade Never, if empty Drop
	//     topology: none: no endpoint has a hint
	//     10.244.0.1:8080        Local          ready, on this node (node node-1, slice shop-x7k2p)
	//     10.244.0.2:8080        -              on node node-2, and traffic stays on this node (node node-2, slice shop-x7k2p)
	// NotLocal
}
