package cases

import (
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// Sources of traffic. local-3 and remote-3 serve nothing in most cases.
var (
	fromPod     = []string{localPod3}
	fromNode    = []string{theNode}
	fromOutside = []string{remotePod3, thirdNode, client}
	fromAll     = []string{localPod3, theNode, remotePod3, thirdNode, client}
	// fromNonPods are all sources that are not pods of the node.
	fromNonPods = []string{theNode, remotePod3, thirdNode, client}
)

var (
	toCluster            = []destination{toClusterIP}
	externalDestinations = []destination{toExternalIP, toVIP, toNodePort}
	everywhere           = []destination{toClusterIP, toExternalIP, toVIP, toNodePort}
)

// external is a service with every kind of external address.
func external(s service) service {
	s.NodePort, s.ExternalIP, s.VIP = true, true, true
	return s
}

func one(s service) []service { return []service{s} }

// refusing is traffic from every source to all addresses of a service without endpoints, except from the node to
// external IPs and VIPs: that has its own case, because kube-proxy's iptables mode does not refuse it.
func refusing(tr traffic) []traffic {
	node := tr
	tr.from, tr.to, tr.want = []string{localPod3, remotePod3, thirdNode, client}, everywhere, refused
	node.from, node.to, node.want = fromNode, []destination{toClusterIP, toNodePort}, refused
	return []traffic{tr, node}
}

// endpointCases cover the choice of endpoints, and services without endpoints: S21 to S25.
func endpointCases() []trafficCase {
	everyEndpoint := cluster.At(localPod1, localPod2, remotePod1, remotePod2)
	all := []string{localPod1, localPod2, remotePod1, remotePod2}
	return []trafficCase{
		inState("a cluster IP leads to all endpoints, of this node and others", "S21, S28",
			one(service{Endpoints: everyEndpoint}),
			traffic{from: fromPod, to: toCluster, want: keeping(all...)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(all...)}),
		inState("external addresses lead to all endpoints, and the source is masqueraded", "S21, S27",
			one(external(service{Endpoints: everyEndpoint})),
			traffic{from: fromAll, to: externalDestinations, want: masquerading(all...)}),
		inState("a single endpoint gets all the traffic", "S21", one(external(service{Endpoints: cluster.At(remotePod1)})),
			traffic{from: fromPod, to: toCluster, want: keeping(remotePod1)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(remotePod1)},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(remotePod1)}),
		inState("a service without endpoints refuses on every address", "S25", one(external(service{})),
			refusing(traffic{})...),
		inState("a service whose endpoints are all unready refuses", "S21, S25",
			one(external(service{Endpoints: cluster.InPhase(cluster.Unready, localPod1, remotePod1)})), refusing(traffic{})...),
		inTurn(nodeRefusedCase, "S25",
			step{services: one(external(service{})),
				traffic: []traffic{{from: fromNode, to: externalDestinations, want: refused}}},
			step{then: "an unready endpoint comes",
				services: one(external(service{Endpoints: cluster.InPhase(cluster.Unready, localPod1)})),
				traffic:  []traffic{{from: fromNode, to: externalDestinations, want: refused}}},
			step{then: "it becomes ready", services: one(external(service{Endpoints: cluster.At(localPod1)})),
				traffic: []traffic{{from: fromNode, to: externalDestinations, want: masquerading(localPod1)}}},
			step{then: "it goes", services: one(external(service{ExternalLocal: true})),
				traffic: []traffic{{from: fromNode, to: externalDestinations, want: refused}}}),
		inState("an unready endpoint gets nothing", "S21", one(external(service{Endpoints: append(cluster.At(localPod1),
			cluster.InPhase(cluster.Unready, localPod2, remotePod1)...)})),
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(localPod1)}),
		inState("terminating endpoints get nothing while others are ready", "S21",
			one(external(service{Endpoints: append(cluster.At(remotePod1),
				cluster.InPhase(cluster.Terminating, localPod1, remotePod2)...)})),
			traffic{from: fromPod, to: toCluster, want: keeping(remotePod1)},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(remotePod1)}),
		inState("terminating endpoints that serve get the traffic when there is nothing better", "S21",
			one(external(service{Endpoints: cluster.InPhase(cluster.Terminating, localPod1, remotePod1)})),
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)}),
		inState("the local set falls back to terminating endpoints while the cluster set stays ready", "S21, S27",
			one(external(service{ExternalLocal: true,
				Endpoints: append(cluster.At(remotePod1), cluster.InPhase(cluster.Terminating, localPod1)...)})),
			traffic{from: fromOutside, to: externalDestinations, want: keeping(localPod1)},
			traffic{from: fromPod, to: append(externalDestinations, toClusterIP), want: keeping(remotePod1)},
			traffic{from: fromNode, to: externalDestinations, want: masquerading(remotePod1)}),
		inState("terminating endpoints on other nodes only: the cluster IP reaches them, external local traffic is dropped",
			"S21, S25",
			one(external(service{ExternalLocal: true, Endpoints: cluster.InPhase(cluster.Terminating, remotePod1)})),
			traffic{from: fromPod, to: everywhere, want: keeping(remotePod1)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(remotePod1)},
			traffic{from: fromOutside, to: externalDestinations, want: dropped}),
		inState("the cluster set respects topology, the local set does not", "S21, S22",
			one(external(service{ExternalLocal: true,
				Endpoints: []endpoint{{At: localPod1, Elsewhere: true}, {At: localPod2}, {At: remotePod1},
					{At: remotePod2, Elsewhere: true}}})),
			traffic{from: fromPod, to: everywhere, want: keeping(localPod2, remotePod1)},
			traffic{from: fromNode, to: externalDestinations, want: masquerading(localPod2, remotePod1)},
			traffic{from: fromOutside, to: externalDestinations, want: keeping(localPod1, localPod2)}),
		// This happens for a while during the live migration of a virtual machine that keeps its address.
		inTurn("an address that is there twice in a slice is served by its ready entry", "S17",
			step{services: one(external(service{Endpoints: []endpoint{{At: localPod1,
				Before: []cluster.Phase{cluster.Terminating}},
				{At: remotePod1, Before: []cluster.Phase{cluster.Unready}}}})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
				{from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)}}},
			step{then: "the order changes", services: one(external(service{Endpoints: []endpoint{
				{At: localPod1, After: []cluster.Phase{cluster.Terminating}},
				{At: remotePod1, Before: []cluster.Phase{cluster.Terminating, cluster.Unready}}}})),
				traffic: []traffic{{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}}}),
		inState("an entry that is not ready hides no ready one of the same address before it", "S17",
			one(external(service{Endpoints: []endpoint{{At: localPod1, After: []cluster.Phase{cluster.Unready}}}})),
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(localPod1)}),
		inTurn("hints for zones keep to the node's zone", "S22",
			step{services: one(external(service{Endpoints: []endpoint{{At: localPod1, Elsewhere: true}, {At: localPod2},
				{At: remotePod1}}})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod2, remotePod1)},
				{from: fromAll, to: externalDestinations, want: masquerading(localPod2, remotePod1)}}},
			step{then: "no hint is for this zone", services: one(external(service{Endpoints: []endpoint{
				{At: localPod1, Elsewhere: true}, {At: remotePod1, Elsewhere: true}}})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}}}),
		inTurn("hints for nodes come before hints for zones", "S22",
			step{services: one(external(service{Endpoints: []endpoint{{At: localPod1, OnlyNode: theNode, Elsewhere: true},
				{At: localPod2, OnlyNode: otherNode}, {At: remotePod1, OnlyNode: otherNode}}})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod1)},
				{from: fromAll, to: externalDestinations, want: masquerading(localPod1)}}},
			step{then: "one endpoint has no hint for a node", services: one(external(service{Endpoints: []endpoint{
				{At: localPod1, OnlyNode: theNode, Elsewhere: true}, {At: localPod2, OnlyNode: otherNode},
				{At: remotePod1}}})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod2, remotePod1)}}},
			step{then: "no hint is for this node", services: one(external(service{Endpoints: []endpoint{
				{At: localPod1, OnlyNode: otherNode}, {At: remotePod1, OnlyNode: thirdNode}}})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}}}),
		inState("ports with one number and different protocols do not mix", "S4",
			one(external(service{Endpoints: cluster.At(localPod1, remotePod1), Ports: []servicePort{
				{Name: "t", Protocol: model.TCP, Target: serverPort},
				{Name: "u", Protocol: model.UDP, Target: serverPort2},
				{Name: "s", Protocol: model.SCTP, Target: serverPort3},
			}})),
			traffic{from: fromPod, to: toCluster, ports: []string{"t"}, want: keeping(localPod1, remotePod1)},
			traffic{from: fromPod, to: toCluster, ports: []string{"u"},
				want: keeping(localPod1, remotePod1).on(serverPort2)},
			traffic{from: fromPod, to: toCluster, ports: []string{"s"},
				want: keeping(localPod1, remotePod1).on(serverPort3)},
			traffic{from: fromAll, to: externalDestinations, ports: []string{"t"},
				want: masquerading(localPod1, remotePod1)},
			traffic{from: fromAll, to: externalDestinations, ports: []string{"u"},
				want: masquerading(localPod1, remotePod1).on(serverPort2)},
			traffic{from: fromAll, to: externalDestinations, ports: []string{"s"},
				want: masquerading(localPod1, remotePod1).on(serverPort3)}).needing(backend.SCTP),
		inState("a port of one protocol says nothing about the others", "S4, S33", []service{
			{Name: "tcp", Slot: 1, NodePort: true, Endpoints: cluster.At(localPod1),
				Ports: []servicePort{{Protocol: model.TCP}}},
			{Name: "udp", Slot: 2, NodePort: true, Endpoints: cluster.At(localPod1),
				Ports: []servicePort{{Protocol: model.UDP}}},
		},
			traffic{of: "tcp", from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{of: "tcp", from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1)},
			traffic{as: &service{Name: "tcp", Slot: 1, Ports: []servicePort{{Protocol: model.UDP}}}, from: fromAll,
				to: toCluster, want: refused},
			traffic{as: &service{Name: "tcp", Slot: 1, Ports: []servicePort{{Protocol: model.UDP}}}, from: fromAll,
				to: []destination{toNodePort}, want: leftAlone},
			traffic{of: "udp", from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{of: "udp", from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1)},
			traffic{as: &service{Name: "udp", Slot: 2, Ports: []servicePort{{Protocol: model.TCP}}}, from: fromAll,
				to: toCluster, want: refused},
			traffic{as: &service{Name: "udp", Slot: 2, Ports: []servicePort{{Protocol: model.TCP}}}, from: fromAll,
				to: []destination{toNodePort}, want: leftAlone}),
		inState("an SCTP service without endpoints refuses", "S25",
			one(external(service{Ports: []servicePort{{Protocol: model.SCTP}}})), refusing(traffic{})...).needing(backend.SCTP),
		inState("a named target port may be another number in each pod", "S15",
			one(service{Endpoints: []endpoint{{At: localPod1, Target: serverPort2},
				{At: remotePod1, Target: serverPort3}, {At: remotePod2}}}),
			traffic{from: fromPod, to: toCluster,
				want: keeping(localPod1).on(serverPort2).and(keeping(remotePod1).on(serverPort3)).
					and(keeping(remotePod2))}),
		inState("one pod can be several endpoints of a port", "S15",
			one(service{Endpoints: []endpoint{{At: localPod1}, {At: localPod1, Target: serverPort2},
				{At: remotePod1, Target: serverPort2}}}),
			traffic{from: fromPod, to: toCluster,
				want: keeping(localPod1).and(keeping(localPod1, remotePod1).on(serverPort2))}),
		inState("each port of a service has endpoints of its own", "S4", one(external(service{Ports: []servicePort{
			{Name: "a", Protocol: model.TCP, Number: 80, Endpoints: cluster.At(localPod1)},
			{Name: "b", Protocol: model.TCP, Number: 81, Endpoints: cluster.At(remotePod1)},
			{Name: "none", Protocol: model.TCP, Number: 90, Endpoints: []endpoint{}},
		}})), append([]traffic{
			{from: fromPod, to: toCluster, ports: []string{"a"}, want: keeping(localPod1)},
			{from: fromPod, to: toCluster, ports: []string{"b"}, want: keeping(remotePod1)},
			{from: fromAll, to: externalDestinations, ports: []string{"a"}, want: masquerading(localPod1)},
			{from: fromAll, to: externalDestinations, ports: []string{"b"}, want: masquerading(remotePod1)},
		}, refusing(traffic{ports: []string{"none"}})...)...),
		inState("many endpoints are all reached", "S21",
			one(service{Ports: []servicePort{{Protocol: model.UDP}}, Endpoints: allServers()}),
			traffic{from: fromPod, to: toCluster, want: keepingAll(allServers())}),
		inState("services that share endpoints each have their own policies", "S27, S28", []service{
			external(service{Name: "a", Endpoints: cluster.At(localPod1, remotePod1)}),
			external(service{Name: "b", Endpoints: cluster.At(localPod1, remotePod1), ExternalLocal: true}),
			external(service{Name: "c", Endpoints: cluster.At(localPod1, remotePod1), InternalLocal: true}),
			external(service{Name: "d"}),
		}, append(refusing(traffic{of: "d"}),
			traffic{of: "a", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
			traffic{of: "b", from: fromOutside, to: externalDestinations, want: keeping(localPod1)},
			traffic{of: "c", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
			traffic{of: "c", from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{of: "b", from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)})...),
		inState("endpoints may be on the host network, of this node too", "S21",
			one(external(service{Endpoints: cluster.At(theNode, otherNode)})),
			traffic{from: fromPod, to: toCluster, want: keeping(theNode, otherNode).fromAnySource()},
			traffic{from: fromOutside, to: toCluster, want: masquerading(theNode, otherNode).fromAnySource()},
			traffic{from: append(fromPod, fromOutside...), to: externalDestinations,
				want: masquerading(theNode, otherNode).fromAnySource()}),
		inState("single-stack services leave the other family alone", "S2", []service{
			external(service{Name: "four", Families: []model.Family{model.IPv4},
				Endpoints: cluster.At(localPod1, remotePod1)}),
			external(service{Name: "six", Families: []model.Family{model.IPv6},
				Endpoints: cluster.At(localPod1, remotePod1)}),
		},
			traffic{of: "four", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
			traffic{of: "six", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
			traffic{of: "four", from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
			traffic{of: "six", from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}).needing(backend.IPv4,
			backend.IPv6),
		inState("traffic to an endpoint itself is left alone", "S27, S28",
			one(external(service{Endpoints: cluster.At(localPod1, remotePod1)})),
			traffic{from: fromAll, to: []destination{toEndpointItself}, want: leftAlone}),
	}
}

// allServers are the servers of all pods.
func allServers() []endpoint {
	var eps []endpoint
	for _, pod := range []string{localPod1, localPod2, remotePod1, remotePod2, remotePod3} {
		for _, port := range network.ServerPorts() {
			eps = append(eps, endpoint{At: pod, Target: port})
		}
	}
	return eps
}

func keepingAll(eps []endpoint) want {
	w := keeping()
	for _, e := range eps {
		w = w.and(keeping(e.At).on(e.Target))
	}
	return w
}
