package conformance

import "sigs.k8s.io/kube-proxy-lib/model"

// addressCases cover node-port addresses and unused ports and addresses: S33, S35, S36.
func addressCases() []trafficCase {
	both := at(localPod1, remotePod1)
	onOtherAddress := []destination{toOtherNodePort}
	proxied := []servicePort{{name: "tcp", protocol: model.TCP}, {name: "udp", protocol: model.UDP}}
	toLoopback := []destination{toLoopbackNodePort}
	return []trafficCase{
		inState("node ports are served on the node's own address only, if that is what is asked for", "S35",
			one(service{nodePort: true, endpoints: both}),
			traffic{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
			traffic{from: fromAll, to: onOtherAddress, want: leftAlone}).needing(NodePortAddresses),
		inState("a node port without endpoints refuses where it is served and nowhere else", "S25, S35",
			one(service{nodePort: true}),
			traffic{from: fromAll, to: []destination{toNodePort}, want: refused}),
		inState("node ports are served on all addresses, if no range is given", "S35",
			one(service{nodePort: true, endpoints: both}),
			traffic{from: fromAll, to: []destination{toNodePort, toOtherNodePort},
				want: masquerading(localPod1, remotePod1)}).in(setup{nodePorts: onAllAddresses}),
		inState("node-port ranges of one family say nothing about the other one", "S35",
			one(service{nodePort: true, endpoints: both}),
			traffic{from: fromAll, to: onOtherAddress, want: masquerading(localPod1, remotePod1)},
			traffic{from: fromAll, to: []destination{toNodePort}, only: model.IPv4, want: leftAlone},
			traffic{from: fromAll, to: []destination{toNodePort}, only: model.IPv6,
				want: masquerading(localPod1, remotePod1)}).needing(IPv4).in(setup{nodePorts: onOtherIPv4Only}),
		inState("node ports are served on 127.0.0.1, and never on ::1", "S36",
			one(service{nodePort: true, endpoints: both}),
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv4,
				want: masquerading(localPod1, remotePod1)},
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv6, want: leftAlone},
			traffic{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)}).
			in(setup{nodePorts: onLocalhostToo}),
		inTurn("a proxy serves node ports on 127.0.0.1 and ::1", "S36a",
			step{services: one(service{nodePort: true, ports: proxied, endpoints: both}), traffic: []traffic{
				{from: fromNode, to: toLoopback, want: masquerading(localPod1, remotePod1)},
				{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
			}},
			step{then: "an endpoint goes", services: one(service{nodePort: true, ports: proxied,
				endpoints: at(remotePod1)}), traffic: []traffic{
				{from: fromNode, to: toLoopback, want: masquerading(remotePod1)},
			}},
			step{then: "the last one goes", services: one(service{nodePort: true, ports: proxied}),
				traffic: []traffic{{from: fromNode, to: toLoopback, want: refused}}},
			step{then: "one comes", services: one(service{nodePort: true, ports: proxied, endpoints: at(localPod1)}),
				traffic: []traffic{{from: fromNode, to: toLoopback, want: masquerading(localPod1)}}},
			step{then: "the service goes", traffic: []traffic{{from: fromNode, to: toLoopback, want: leftAlone,
				as: &service{nodePort: true, ports: proxied}}}}).in(setup{nodePorts: onLoopbackByProxy}),
		inTurn("a proxy of node ports on loopback addresses keeps to the node with traffic policy Local", "S36a",
			step{services: one(service{nodePort: true, externalLocal: true, ports: proxied, endpoints: both}),
				traffic: []traffic{
					{from: fromNode, to: toLoopback, want: masquerading(localPod1)},
					{from: fromNode, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
				}},
			step{then: "the local endpoint goes", services: one(service{nodePort: true, externalLocal: true,
				ports: proxied, endpoints: at(remotePod1)}), traffic: []traffic{
				{from: fromNode, to: toLoopback, want: refused},
			}}).in(setup{nodePorts: onLoopbackByProxy}),
		inState("the node's primary address and ranges add up, and other families have the primary address alone", "S35",
			one(service{nodePort: true, endpoints: both}),
			traffic{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
			traffic{from: fromAll, to: onOtherAddress, only: model.IPv4, want: masquerading(localPod1, remotePod1)},
			traffic{from: fromAll, to: onOtherAddress, only: model.IPv6, want: leftAlone}).
			needing(IPv4).in(setup{nodePorts: onPrimaryAndOtherIPv4}),
		inState("the node's primary address and localhost add up", "S35, S36",
			one(service{nodePort: true, endpoints: both}),
			traffic{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
			traffic{from: fromAll, to: onOtherAddress, want: leftAlone},
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv4,
				want: masquerading(localPod1, remotePod1)},
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv6, want: leftAlone}).
			in(setup{nodePorts: onPrimaryAndLocalhost}),
		inState("localhost alone is no other address of either family", "S35, S36",
			one(service{nodePort: true, endpoints: both}),
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv4,
				want: masquerading(localPod1, remotePod1)},
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv6, want: leftAlone},
			traffic{from: fromAll, to: []destination{toNodePort, toOtherNodePort}, want: leftAlone}).
			in(setup{nodePorts: onLocalhostAlone}),
		inState("node ports are not served on 127.0.0.1 unless it is asked for", "S36",
			one(service{nodePort: true, endpoints: both}),
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, want: leftAlone}).
			in(setup{nodePorts: onAllAddresses}),
		inState(unknownPortsCase, "S33", one(service{endpoints: both}),
			traffic{from: fromAll, to: []destination{toUnknownPort}, want: refused.strictly()},
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}).needing(UnusedAddresses),
		inState(externalPortsCase, "S33", one(service{slot: 1, externalIP: true, vip: true, endpoints: both}),
			traffic{as: &service{name: "other", slot: 1, ports: []servicePort{{protocol: model.TCP, number: 81}}},
				from: fromAll,
				to:   []destination{toExternalIP, toVIP}, want: leftAlone}),
		inTurn("a load balancer with ipMode Proxy is left to itself", "S7",
			step{services: one(external(service{vipByProxy: true, endpoints: both})), traffic: []traffic{
				{from: fromAll, to: []destination{toVIP}, want: leftAlone},
				{from: fromAll, to: []destination{toExternalIP, toNodePort}, want: masquerading(localPod1, remotePod1)}}},
			step{then: "ipMode becomes VIP", services: one(external(service{endpoints: both})), traffic: []traffic{
				{from: fromAll, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)}}},
			step{then: "ipMode becomes Proxy again", services: one(external(service{vipByProxy: true, endpoints: both})),
				traffic: []traffic{{from: fromAll, to: []destination{toVIP}, want: leftAlone}}}),
		inTurn("a Service of another service proxy is left to it", "S1",
			step{services: one(external(service{otherProxy: true, endpoints: both})), traffic: []traffic{
				{from: fromAll, to: externalDestinations, want: leftAlone},
				{from: fromAll, to: toCluster, want: dropped}}},
			step{then: "the label goes", services: one(external(service{endpoints: both})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
				{from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)}}},
			step{then: "it comes back", services: one(external(service{otherProxy: true, endpoints: both})),
				traffic: []traffic{
					{from: fromAll, to: externalDestinations, want: leftAlone},
					{from: fromAll, to: toCluster, want: dropped}}}),
		inState("addresses of the service CIDRs that no service has are dropped", "S33",
			one(service{endpoints: both}),
			traffic{from: fromAll, to: []destination{toUnallocatedAddress}, want: dropped.strictly()},
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}).needing(UnusedAddresses),
		{
			name: "a VIP is an allowed source if the ranges name it", rules: "S26", needs: []Feature{SourceRanges},
			vipsOnNode: true,
			steps: []step{
				{services: one(service{vip: true, endpoints: both,
					ranges: []sourceRange{{place: theNode}}}), traffic: []traffic{
					{from: fromNode, to: []destination{toVIP}, asVIP: true, want: masquerading(localPod1, remotePod1)},
					{from: fromNode, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
				}},
				{then: "they no longer do",
					services: one(service{vip: true, endpoints: both, ranges: []sourceRange{{place: client}}}),
					traffic: []traffic{
						{from: fromNode, to: []destination{toVIP}, asVIP: true, want: dropped},
					}},
			},
		},
	}
}
