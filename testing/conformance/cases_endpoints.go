package conformance

import (
	"sigs.k8s.io/kube-proxy-lib/model"
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
	toCluster  = []destination{toClusterIP}
	everywhere = []destination{toClusterIP, toExternalIP, toVIP, toNodePort}
)

// external is a service with every kind of external address.
func external(s service) service {
	s.nodePort, s.externalIP, s.vip = true, true, true
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
	everyEndpoint := at(localPod1, localPod2, remotePod1, remotePod2)
	all := []string{localPod1, localPod2, remotePod1, remotePod2}
	return []trafficCase{
		inState("a cluster IP leads to all endpoints, of this node and others", "S21, S28",
			one(service{endpoints: everyEndpoint}),
			traffic{from: fromPod, to: toCluster, want: keeping(all...)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(all...)}),
		inState("external addresses lead to all endpoints, and the source is masqueraded", "S21, S27",
			one(external(service{endpoints: everyEndpoint})),
			traffic{from: fromAll, to: externalDestinations, want: masquerading(all...)}),
		inState("a single endpoint gets all the traffic", "S21", one(external(service{endpoints: at(remotePod1)})),
			traffic{from: fromPod, to: toCluster, want: keeping(remotePod1)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(remotePod1)},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(remotePod1)}),
		inState("a service without endpoints refuses on every address", "S25", one(external(service{})),
			refusing(traffic{})...),
		inState("a service whose endpoints are all unready refuses", "S21, S25",
			one(external(service{endpoints: inPhase(unready, localPod1, remotePod1)})), refusing(traffic{})...),
		inTurn(nodeRefusedCase, "S25",
			step{services: one(external(service{})),
				traffic: []traffic{{from: fromNode, to: externalDestinations, want: refused}}},
			step{then: "an unready endpoint comes",
				services: one(external(service{endpoints: inPhase(unready, localPod1)})),
				traffic:  []traffic{{from: fromNode, to: externalDestinations, want: refused}}},
			step{then: "it becomes ready", services: one(external(service{endpoints: at(localPod1)})),
				traffic: []traffic{{from: fromNode, to: externalDestinations, want: masquerading(localPod1)}}},
			step{then: "it goes", services: one(external(service{externalLocal: true})),
				traffic: []traffic{{from: fromNode, to: externalDestinations, want: refused}}}),
		inState("an unready endpoint gets nothing", "S21", one(external(service{endpoints: append(at(localPod1),
			inPhase(unready, localPod2, remotePod1)...)})),
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(localPod1)}),
		inState("terminating endpoints get nothing while others are ready", "S21",
			one(external(service{endpoints: append(at(remotePod1),
				inPhase(terminating, localPod1, remotePod2)...)})),
			traffic{from: fromPod, to: toCluster, want: keeping(remotePod1)},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(remotePod1)}),
		inState("terminating endpoints that serve get the traffic when there is nothing better", "S21",
			one(external(service{endpoints: inPhase(terminating, localPod1, remotePod1)})),
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)}),
		inState("the local set falls back to terminating endpoints while the cluster set stays ready", "S21, S27",
			one(external(service{externalLocal: true,
				endpoints: append(at(remotePod1), inPhase(terminating, localPod1)...)})),
			traffic{from: fromOutside, to: externalDestinations, want: keeping(localPod1)},
			traffic{from: fromPod, to: append(externalDestinations, toClusterIP), want: keeping(remotePod1)},
			traffic{from: fromNode, to: externalDestinations, want: masquerading(remotePod1)}),
		inState("terminating endpoints on other nodes only: the cluster IP reaches them, external local traffic is dropped",
			"S21, S25",
			one(external(service{externalLocal: true, endpoints: inPhase(terminating, remotePod1)})),
			traffic{from: fromPod, to: everywhere, want: keeping(remotePod1)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(remotePod1)},
			traffic{from: fromOutside, to: externalDestinations, want: dropped}),
		inState("the cluster set respects topology, the local set does not", "S21, S22",
			one(external(service{externalLocal: true,
				endpoints: []endpoint{{at: localPod1, elsewhere: true}, {at: localPod2}, {at: remotePod1},
					{at: remotePod2, elsewhere: true}}})),
			traffic{from: fromPod, to: everywhere, want: keeping(localPod2, remotePod1)},
			traffic{from: fromNode, to: externalDestinations, want: masquerading(localPod2, remotePod1)},
			traffic{from: fromOutside, to: externalDestinations, want: keeping(localPod1, localPod2)}),
		// As for a while in the live migration of a virtual machine that keeps its address.
		inTurn("an address that is there twice in a slice is served by its ready entry", "S17",
			step{services: one(external(service{endpoints: []endpoint{{at: localPod1, before: []phase{terminating}},
				{at: remotePod1, before: []phase{unready}}}})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
				{from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)}}},
			step{then: "the order changes", services: one(external(service{endpoints: []endpoint{
				{at: localPod1, after: []phase{terminating}}, {at: remotePod1, before: []phase{terminating, unready}}}})),
				traffic: []traffic{{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}}}),
		inState("an entry that is not ready hides no ready one of the same address before it", "S17",
			one(external(service{endpoints: []endpoint{{at: localPod1, after: []phase{unready}}}})),
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(localPod1)}),
		inTurn("hints for zones keep to the node's zone", "S22",
			step{services: one(external(service{endpoints: []endpoint{{at: localPod1, elsewhere: true}, {at: localPod2},
				{at: remotePod1}}})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod2, remotePod1)},
				{from: fromAll, to: externalDestinations, want: masquerading(localPod2, remotePod1)}}},
			step{then: "no hint is for this zone", services: one(external(service{endpoints: []endpoint{
				{at: localPod1, elsewhere: true}, {at: remotePod1, elsewhere: true}}})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}}}),
		inTurn("hints for nodes come before hints for zones", "S22",
			step{services: one(external(service{endpoints: []endpoint{{at: localPod1, onlyNode: theNode, elsewhere: true},
				{at: localPod2, onlyNode: otherNode}, {at: remotePod1, onlyNode: otherNode}}})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod1)},
				{from: fromAll, to: externalDestinations, want: masquerading(localPod1)}}},
			step{then: "one endpoint has no hint for a node", services: one(external(service{endpoints: []endpoint{
				{at: localPod1, onlyNode: theNode, elsewhere: true}, {at: localPod2, onlyNode: otherNode},
				{at: remotePod1}}})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod2, remotePod1)}}},
			step{then: "no hint is for this node", services: one(external(service{endpoints: []endpoint{
				{at: localPod1, onlyNode: otherNode}, {at: remotePod1, onlyNode: thirdNode}}})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}}}),
		inState("ports with one number and different protocols do not mix", "S4",
			one(external(service{endpoints: at(localPod1, remotePod1), ports: []servicePort{
				{name: "t", protocol: model.TCP, target: serverPort},
				{name: "u", protocol: model.UDP, target: serverPort2},
				{name: "s", protocol: model.SCTP, target: serverPort3},
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
				want: masquerading(localPod1, remotePod1).on(serverPort3)}).needing(SCTP),
		inState("a port of one protocol says nothing about the others", "S4, S33", []service{
			{name: "tcp", slot: 1, nodePort: true, endpoints: at(localPod1),
				ports: []servicePort{{protocol: model.TCP}}},
			{name: "udp", slot: 2, nodePort: true, endpoints: at(localPod1),
				ports: []servicePort{{protocol: model.UDP}}},
		},
			traffic{of: "tcp", from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{of: "tcp", from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1)},
			traffic{as: &service{name: "tcp", slot: 1, ports: []servicePort{{protocol: model.UDP}}}, from: fromAll,
				to: toCluster, want: refused},
			traffic{as: &service{name: "tcp", slot: 1, ports: []servicePort{{protocol: model.UDP}}}, from: fromAll,
				to: []destination{toNodePort}, want: leftAlone},
			traffic{of: "udp", from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{of: "udp", from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1)},
			traffic{as: &service{name: "udp", slot: 2, ports: []servicePort{{protocol: model.TCP}}}, from: fromAll,
				to: toCluster, want: refused},
			traffic{as: &service{name: "udp", slot: 2, ports: []servicePort{{protocol: model.TCP}}}, from: fromAll,
				to: []destination{toNodePort}, want: leftAlone}),
		inState("an SCTP service without endpoints refuses", "S25",
			one(external(service{ports: []servicePort{{protocol: model.SCTP}}})), refusing(traffic{})...).needing(SCTP),
		inState("a named target port may be another number in each pod", "S15",
			one(service{endpoints: []endpoint{{at: localPod1, target: serverPort2},
				{at: remotePod1, target: serverPort3}, {at: remotePod2}}}),
			traffic{from: fromPod, to: toCluster,
				want: keeping(localPod1).on(serverPort2).and(keeping(remotePod1).on(serverPort3)).and(
					keeping(remotePod2))}),
		inState("one pod can be several endpoints of a port", "S15",
			one(service{endpoints: []endpoint{{at: localPod1}, {at: localPod1, target: serverPort2},
				{at: remotePod1, target: serverPort2}}}),
			traffic{from: fromPod, to: toCluster,
				want: keeping(localPod1).and(keeping(localPod1, remotePod1).on(serverPort2))}),
		inState("each port of a service has endpoints of its own", "S4", one(external(service{ports: []servicePort{
			{name: "a", protocol: model.TCP, number: 80, endpoints: at(localPod1)},
			{name: "b", protocol: model.TCP, number: 81, endpoints: at(remotePod1)},
			{name: "none", protocol: model.TCP, number: 90, endpoints: []endpoint{}},
		}})), append([]traffic{
			{from: fromPod, to: toCluster, ports: []string{"a"}, want: keeping(localPod1)},
			{from: fromPod, to: toCluster, ports: []string{"b"}, want: keeping(remotePod1)},
			{from: fromAll, to: externalDestinations, ports: []string{"a"}, want: masquerading(localPod1)},
			{from: fromAll, to: externalDestinations, ports: []string{"b"}, want: masquerading(remotePod1)},
		}, refusing(traffic{ports: []string{"none"}})...)...),
		inState("many endpoints are all reached", "S21",
			one(service{ports: []servicePort{{protocol: model.UDP}}, endpoints: allServers()}),
			traffic{from: fromPod, to: toCluster, want: keepingAll(allServers())}),
		inState("services that share endpoints each have their own policies", "S27, S28", []service{
			external(service{name: "a", endpoints: at(localPod1, remotePod1)}),
			external(service{name: "b", endpoints: at(localPod1, remotePod1), externalLocal: true}),
			external(service{name: "c", endpoints: at(localPod1, remotePod1), internalLocal: true}),
			external(service{name: "d"}),
		}, append(refusing(traffic{of: "d"}),
			traffic{of: "a", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
			traffic{of: "b", from: fromOutside, to: externalDestinations, want: keeping(localPod1)},
			traffic{of: "c", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
			traffic{of: "c", from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{of: "b", from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)})...),
		inState("endpoints may be on the host network, of this node too", "S21",
			one(external(service{endpoints: at(theNode, otherNode)})),
			traffic{from: fromPod, to: toCluster, want: keeping(theNode, otherNode).fromAnySource()},
			traffic{from: fromOutside, to: toCluster, want: masquerading(theNode, otherNode).fromAnySource()},
			traffic{from: append(fromPod, fromOutside...), to: externalDestinations,
				want: masquerading(theNode, otherNode).fromAnySource()}),
		inState("single-stack services leave the other family alone", "S2", []service{
			external(service{name: "four", families: []model.Family{model.IPv4},
				endpoints: at(localPod1, remotePod1)}),
			external(service{name: "six", families: []model.Family{model.IPv6},
				endpoints: at(localPod1, remotePod1)}),
		},
			traffic{of: "four", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
			traffic{of: "six", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
			traffic{of: "four", from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
			traffic{of: "six", from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}).needing(IPv4, IPv6),
		inState("traffic to an endpoint itself is left alone", "S27, S28",
			one(external(service{endpoints: at(localPod1, remotePod1)})),
			traffic{from: fromAll, to: []destination{toEndpointItself}, want: leftAlone}),
	}
}

// allServers are the servers of all pods.
func allServers() []endpoint {
	var eps []endpoint
	for _, pod := range []string{localPod1, localPod2, remotePod1, remotePod2, remotePod3} {
		for _, port := range network.ServerPorts() {
			eps = append(eps, endpoint{at: pod, target: port})
		}
	}
	return eps
}

func keepingAll(eps []endpoint) want {
	w := keeping()
	for _, e := range eps {
		w = w.and(keeping(e.at).on(e.target))
	}
	return w
}
