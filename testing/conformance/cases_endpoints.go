package conformance

import "sigs.k8s.io/kube-proxy-lib/model"

// Sources of traffic. local-3 and remote-3 serve nothing in most cases.
var (
	fromPod     = []string{localPod3}
	fromNode    = []string{theNode}
	fromOutside = []string{remotePod3, thirdNode, client}
	fromAll     = []string{localPod3, theNode, remotePod3, thirdNode, client}
	// fromNonPods are all that are not pods of the node.
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

// endpointCases are about which endpoints get the traffic, and what happens without any: S21 to S25.
func endpointCases() []trafficCase {
	everyEndpoint := at(localPod1, localPod2, remotePod1, remotePod2)
	all := []string{localPod1, localPod2, remotePod1, remotePod2}
	return []trafficCase{
		{
			name: "a cluster IP leads to all endpoints, of this node and others", rules: "S21, S28",
			steps: []step{{services: one(service{endpoints: everyEndpoint}), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(all...)},
				{from: fromNonPods, to: toCluster, want: masquerading(all...)},
			}}},
		},
		{
			name: "external addresses lead to all endpoints, and the source is masqueraded", rules: "S21, S27",
			steps: []step{{services: one(external(service{endpoints: everyEndpoint})), traffic: []traffic{
				{from: fromAll, to: externalDestinations, want: masquerading(all...)},
			}}},
		},
		{
			name: "a single endpoint gets all the traffic", rules: "S21",
			steps: []step{{services: one(external(service{endpoints: at(remotePod1)})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(remotePod1)},
				{from: fromNonPods, to: toCluster, want: masquerading(remotePod1)},
				{from: fromAll, to: externalDestinations, want: masquerading(remotePod1)},
			}}},
		},
		{
			name: "a service without endpoints refuses on every address", rules: "S25",
			steps: []step{{services: one(external(service{})), traffic: []traffic{
				{from: fromAll, to: everywhere, want: refused},
			}}},
		},
		{
			name: "a service whose endpoints are all unready refuses", rules: "S21, S25",
			steps: []step{{services: one(external(service{endpoints: inPhase(unready, localPod1, remotePod1)})),
				traffic: []traffic{
					{from: fromAll, to: everywhere, want: refused},
				}}},
		},
		{
			name: "an unready endpoint gets nothing", rules: "S21",
			steps: []step{{
				services: one(external(service{endpoints: append(at(localPod1),
					inPhase(unready, localPod2, remotePod1)...)})),
				traffic: []traffic{
					{from: fromPod, to: toCluster, want: keeping(localPod1)},
					{from: fromAll, to: externalDestinations, want: masquerading(localPod1)},
				}}},
		},
		{
			name: "terminating endpoints get nothing while others are ready", rules: "S21",
			steps: []step{{
				services: one(external(service{endpoints: append(at(remotePod1),
					inPhase(terminating, localPod1, remotePod2)...)})),
				traffic: []traffic{
					{from: fromPod, to: toCluster, want: keeping(remotePod1)},
					{from: fromAll, to: externalDestinations, want: masquerading(remotePod1)},
				}}},
		},
		{
			name: "terminating endpoints that serve get the traffic when there is nothing better", rules: "S21",
			steps: []step{{services: one(external(service{endpoints: inPhase(terminating, localPod1, remotePod1)})),
				traffic: []traffic{
					{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
					{from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
				}}},
		},
		{
			name:  "the local set falls back to terminating endpoints while the cluster set stays ready",
			rules: "S21, S27",
			steps: []step{{
				services: one(external(service{externalLocal: true,
					endpoints: append(at(remotePod1), inPhase(terminating, localPod1)...)})),
				traffic: []traffic{
					{from: fromOutside, to: externalDestinations, want: keeping(localPod1)},
					{from: fromPod, to: append(externalDestinations, toClusterIP), want: keeping(remotePod1)},
					{from: fromNode, to: externalDestinations, want: masquerading(remotePod1)},
				}}},
		},
		{
			name:  "terminating endpoints on other nodes only: the cluster IP reaches them, external local traffic is dropped",
			rules: "S21, S25",
			steps: []step{{
				services: one(external(service{externalLocal: true, endpoints: inPhase(terminating, remotePod1)})),
				traffic: []traffic{
					{from: fromPod, to: everywhere, want: keeping(remotePod1)},
					{from: fromNonPods, to: toCluster, want: masquerading(remotePod1)},
					{from: fromOutside, to: externalDestinations, want: dropped},
				}}},
		},
		{
			name: "the cluster set respects topology, the local set does not", rules: "S21, S22",
			steps: []step{{
				services: one(external(service{externalLocal: true,
					endpoints: []endpoint{{at: localPod1, elsewhere: true}, {at: localPod2}, {at: remotePod1},
						{at: remotePod2, elsewhere: true}}})),
				traffic: []traffic{
					{from: fromPod, to: everywhere, want: keeping(localPod2, remotePod1)},
					{from: fromNode, to: externalDestinations, want: masquerading(localPod2, remotePod1)},
					{from: fromOutside, to: externalDestinations, want: keeping(localPod1, localPod2)},
				}}},
		},
		{
			name: "ports with one number and different protocols do not mix", rules: "S4",
			needs: []Feature{SCTP},
			steps: []step{{
				services: one(external(service{endpoints: at(localPod1, remotePod1), ports: []servicePort{
					{name: "t", protocol: model.TCP, target: serverPort},
					{name: "u", protocol: model.UDP, target: serverPort2},
					{name: "s", protocol: model.SCTP, target: serverPort3},
				}})),
				traffic: []traffic{
					{from: fromPod, to: toCluster, ports: []string{"t"}, want: keeping(localPod1, remotePod1)},
					{from: fromPod, to: toCluster, ports: []string{"u"},
						want: keeping(localPod1, remotePod1).on(serverPort2)},
					{from: fromPod, to: toCluster, ports: []string{"s"},
						want: keeping(localPod1, remotePod1).on(serverPort3)},
					{from: fromAll, to: externalDestinations, ports: []string{"t"},
						want: masquerading(localPod1, remotePod1)},
					{from: fromAll, to: externalDestinations, ports: []string{"u"},
						want: masquerading(localPod1, remotePod1).on(serverPort2)},
					{from: fromAll, to: externalDestinations, ports: []string{"s"},
						want: masquerading(localPod1, remotePod1).on(serverPort3)},
				}}},
		},
		{
			name: "a port of one protocol says nothing about the others", rules: "S4, S33",
			steps: []step{{
				services: []service{
					{name: "tcp", slot: 1, nodePort: true, endpoints: at(localPod1),
						ports: []servicePort{{protocol: model.TCP}}},
					{name: "udp", slot: 2, nodePort: true, endpoints: at(localPod1),
						ports: []servicePort{{protocol: model.UDP}}},
				},
				traffic: []traffic{
					{of: "tcp", from: fromPod, to: toCluster, want: keeping(localPod1)},
					{of: "tcp", from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1)},
					{as: &service{name: "tcp", slot: 1, ports: []servicePort{{protocol: model.UDP}}}, from: fromAll,
						to: toCluster, want: refused},
					{as: &service{name: "tcp", slot: 1, ports: []servicePort{{protocol: model.UDP}}}, from: fromAll,
						to: []destination{toNodePort}, want: leftAlone},
					{of: "udp", from: fromPod, to: toCluster, want: keeping(localPod1)},
					{of: "udp", from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1)},
					{as: &service{name: "udp", slot: 2, ports: []servicePort{{protocol: model.TCP}}}, from: fromAll,
						to: toCluster, want: refused},
					{as: &service{name: "udp", slot: 2, ports: []servicePort{{protocol: model.TCP}}}, from: fromAll,
						to: []destination{toNodePort}, want: leftAlone},
				}}},
		},
		{
			name: "an SCTP service without endpoints refuses", rules: "S25", needs: []Feature{SCTP},
			steps: []step{{services: one(external(service{ports: []servicePort{{protocol: model.SCTP}}})),
				traffic: []traffic{
					{from: fromAll, to: everywhere, want: refused},
				}}},
		},
		{
			name: "a named target port may be another number in each pod", rules: "S15",
			steps: []step{{
				services: one(service{endpoints: []endpoint{{at: localPod1, target: serverPort2},
					{at: remotePod1, target: serverPort3}, {at: remotePod2}}}),
				traffic: []traffic{{from: fromPod, to: toCluster,
					want: keeping(localPod1).on(serverPort2).and(keeping(remotePod1).on(serverPort3)).and(
						keeping(remotePod2))}}}},
		},
		{
			name: "one pod can be several endpoints of a port", rules: "S15",
			steps: []step{{
				services: one(service{endpoints: []endpoint{{at: localPod1}, {at: localPod1, target: serverPort2},
					{at: remotePod1, target: serverPort2}}}),
				traffic: []traffic{{from: fromPod, to: toCluster,
					want: keeping(localPod1).and(keeping(localPod1, remotePod1).on(serverPort2))}}}},
		},
		{
			name: "each port of a service has endpoints of its own", rules: "S4",
			steps: []step{{
				services: one(external(service{ports: []servicePort{
					{name: "a", protocol: model.TCP, number: 80, endpoints: at(localPod1)},
					{name: "b", protocol: model.TCP, number: 81, endpoints: at(remotePod1)},
					{name: "none", protocol: model.TCP, number: 90, endpoints: []endpoint{}},
				}})),
				traffic: []traffic{
					{from: fromPod, to: toCluster, ports: []string{"a"}, want: keeping(localPod1)},
					{from: fromPod, to: toCluster, ports: []string{"b"}, want: keeping(remotePod1)},
					{from: fromAll, to: externalDestinations, ports: []string{"a"}, want: masquerading(localPod1)},
					{from: fromAll, to: externalDestinations, ports: []string{"b"}, want: masquerading(remotePod1)},
					{from: fromAll, to: everywhere, ports: []string{"none"}, want: refused},
				}}},
		},
		{
			name: "many endpoints are all reached", rules: "S21",
			steps: []step{{
				services: one(service{ports: []servicePort{{protocol: model.UDP}}, endpoints: allServers()}),
				traffic:  []traffic{{from: fromPod, to: toCluster, want: keepingAll(allServers())}}}},
		},
		{
			name: "services that share endpoints each have their own policies", rules: "S27, S28",
			steps: []step{{
				services: []service{
					external(service{name: "a", endpoints: at(localPod1, remotePod1)}),
					external(service{name: "b", endpoints: at(localPod1, remotePod1), externalLocal: true}),
					external(service{name: "c", endpoints: at(localPod1, remotePod1), internalLocal: true}),
					external(service{name: "d"}),
				},
				traffic: []traffic{
					{of: "a", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
					{of: "b", from: fromOutside, to: externalDestinations, want: keeping(localPod1)},
					{of: "c", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
					{of: "c", from: fromPod, to: toCluster, want: keeping(localPod1)},
					{of: "b", from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
					{of: "d", from: fromAll, to: everywhere, want: refused},
				}}},
		},
		{
			name: "endpoints may be on the host network, of this node too", rules: "S21",
			steps: []step{{
				services: one(external(service{endpoints: at(theNode, otherNode)})),
				traffic: []traffic{
					// Linux masquerades only what it sends on: backends differ in what a process on the node sees.
					{from: fromPod, to: toCluster, want: keeping(theNode, otherNode).fromAnySource()},
					{from: fromOutside, to: toCluster, want: masquerading(theNode, otherNode).fromAnySource()},
					{from: append(fromPod, fromOutside...), to: externalDestinations,
						want: masquerading(theNode, otherNode).fromAnySource()},
				}}},
		},
		{
			name: "single-stack services leave the other family alone", rules: "S2",
			needs: []Feature{IPv4, IPv6},
			steps: []step{{
				services: []service{
					external(service{name: "four", families: []model.Family{model.IPv4},
						endpoints: at(localPod1, remotePod1)}),
					external(service{name: "six", families: []model.Family{model.IPv6},
						endpoints: at(localPod1, remotePod1)}),
				},
				traffic: []traffic{
					{of: "four", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
					{of: "six", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
					{of: "four", from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
					{of: "six", from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
				}}},
		},
		{
			name: "traffic to an endpoint itself is left alone", rules: "S27, S28",
			steps: []step{{
				services: one(external(service{endpoints: at(localPod1, remotePod1)})),
				traffic:  []traffic{{from: fromAll, to: []destination{toEndpointItself}, want: leftAlone}}}},
		},
	}
}

// allServers are the servers of all pods.
func allServers() []endpoint {
	var eps []endpoint
	for _, pod := range []string{localPod1, localPod2, remotePod1, remotePod2, remotePod3} {
		for _, port := range serverPorts() {
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
