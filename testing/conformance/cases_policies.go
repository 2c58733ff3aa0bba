package conformance

import "sigs.k8s.io/kube-proxy-lib/model"

// policyCases cover traffic policies, masquerading, source ranges and detectors: S25 to S30.
func policyCases() []trafficCase {
	both := at(localPod1, remotePod1)
	return []trafficCase{
		inState("internal traffic policy Local keeps to the node, and does not change masquerading", "S28",
			one(external(service{internalLocal: true, endpoints: both})),
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(localPod1)},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)}),
		inState("internal traffic policy Local without a local endpoint drops on the cluster IP alone", "S25",
			one(external(service{internalLocal: true, endpoints: at(remotePod1)})),
			traffic{from: fromAll, to: toCluster, want: dropped},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(remotePod1)}),
		inTurn("internal traffic policy Local on a service that is internal only", "S23, S25",
			step{services: one(service{internalLocal: true, endpoints: at(remotePod1)}), traffic: []traffic{
				{from: fromAll, to: toCluster, want: dropped},
			}},
			step{then: "a local endpoint comes", services: one(service{internalLocal: true, endpoints: both}),
				traffic: []traffic{
					{from: fromPod, to: toCluster, want: keeping(localPod1)},
				}},
			step{then: "all endpoints go", services: one(service{internalLocal: true}), traffic: []traffic{
				{from: fromAll, to: toCluster, want: refused},
			}}),
		inState("external traffic policy Local keeps to the node and keeps the source", "S27",
			one(external(service{externalLocal: true, endpoints: at(localPod1, localPod2, remotePod1)})),
			traffic{from: fromOutside, to: externalDestinations, want: keeping(localPod1, localPod2)},
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1, localPod2, remotePod1)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(localPod1, localPod2, remotePod1)}),
		inState("external traffic policy Local: pods and the node itself reach all endpoints, the node with source NAT",
			"S27",
			one(external(service{externalLocal: true, endpoints: both})),
			traffic{from: fromPod, to: externalDestinations, want: keeping(localPod1, remotePod1)},
			traffic{from: fromNode, to: externalDestinations, want: masquerading(localPod1, remotePod1)}),
		inState("external traffic policy Local without a local endpoint drops what comes from outside", "S25, S27",
			one(external(service{externalLocal: true, endpoints: at(remotePod1)})),
			traffic{from: fromOutside, to: externalDestinations, want: dropped},
			traffic{from: fromPod, to: everywhere, want: keeping(remotePod1)},
			traffic{from: fromNode, to: externalDestinations, want: masquerading(remotePod1)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(remotePod1)}),
		inState("external traffic policy Local without any endpoint anywhere refuses", "S25",
			one(external(service{externalLocal: true})), refusing(traffic{})...),
		inState("both policies Local", "S25, S27, S28",
			one(external(service{externalLocal: true, internalLocal: true, endpoints: both})),
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(localPod1)},
			traffic{from: fromOutside, to: externalDestinations, want: keeping(localPod1)},
			traffic{from: fromPod, to: externalDestinations, want: keeping(localPod1, remotePod1)}),
		inState("a pod that reaches itself through a service is masqueraded", "S29", []service{
			external(service{name: "cluster", endpoints: both}),
			external(service{name: "local", endpoints: both, externalLocal: true}),
			external(service{name: "alone", endpoints: at(localPod1)}),
		},
			traffic{of: "cluster", from: []string{localPod1}, to: toCluster,
				want: masquerading(localPod1).and(keeping(remotePod1))},
			traffic{of: "local", from: []string{localPod1}, to: everywhere,
				want: masquerading(localPod1).and(keeping(remotePod1))},
			traffic{of: "alone", from: []string{localPod1}, to: everywhere, want: masquerading(localPod1)}),
		inState("masquerade-all masquerades pods to cluster IPs, and nothing else", "S28", []service{
			external(service{name: "cluster", endpoints: both}),
			external(service{name: "local", externalLocal: true, endpoints: both}),
		},
			traffic{of: "cluster", from: fromAll, to: toCluster, want: masquerading(localPod1, remotePod1)},
			traffic{of: "local", from: fromPod, to: externalDestinations, want: keeping(localPod1, remotePod1)},
			traffic{of: "local", from: fromOutside, to: externalDestinations, want: keeping(localPod1)}).
			in(setup{masqueradeAll: true}),
		inState("source ranges guard the VIP alone", "S26",
			one(external(service{endpoints: both, ranges: []sourceRange{{place: client}}})),
			traffic{from: []string{client}, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
			traffic{from: []string{client2, localPod3, theNode, remotePod3}, to: []destination{toVIP}, want: dropped},
			traffic{from: append(fromNonPods, client2, localPod3), to: []destination{toExternalIP, toNodePort},
				want: masquerading(localPod1, remotePod1)},
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}).needing(SourceRanges),
		inState("source ranges that hold pods and the node let them in", "S26",
			one(external(service{endpoints: both, externalLocal: true,
				ranges: []sourceRange{{pods: true}, {place: theNode}}})),
			traffic{from: fromPod, to: []destination{toVIP}, want: keeping(localPod1, remotePod1)},
			traffic{from: fromNode, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
			traffic{from: fromOutside, to: []destination{toVIP}, want: dropped},
			traffic{from: fromOutside, to: []destination{toExternalIP, toNodePort}, want: keeping(localPod1)}).
			needing(SourceRanges),
		inState("source ranges of one family leave the other one open", "S8", one(external(service{endpoints: both,
			ranges: []sourceRange{{place: client, only: model.IPv6}}})),
			traffic{from: []string{client, client2}, to: []destination{toVIP}, only: model.IPv4,
				want: masquerading(localPod1, remotePod1)},
			traffic{from: []string{client}, to: []destination{toVIP}, only: model.IPv6,
				want: masquerading(localPod1, remotePod1)},
			traffic{from: []string{client2}, to: []destination{toVIP}, only: model.IPv6, want: dropped}).
			needing(SourceRanges, IPv4, IPv6),
		inTurn("source ranges come, change and go", "S26",
			step{services: one(external(service{endpoints: both})), traffic: []traffic{
				{from: []string{client, client2}, to: []destination{toVIP},
					want: masquerading(localPod1, remotePod1)}}},
			step{then: "client-2 alone may",
				services: one(external(service{endpoints: both, ranges: []sourceRange{{place: client2}}})),
				traffic: []traffic{
					{from: []string{client2}, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
					{from: []string{client}, to: []destination{toVIP}, want: dropped}}},
			step{then: "client alone may",
				services: one(external(service{endpoints: both, ranges: []sourceRange{{place: client}}})),
				traffic: []traffic{
					{from: []string{client}, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
					{from: []string{client2}, to: []destination{toVIP}, want: dropped}}},
			step{then: "all may again", services: one(external(service{endpoints: both})), traffic: []traffic{
				{from: []string{client, client2}, to: []destination{toVIP},
					want: masquerading(localPod1, remotePod1)}}}).needing(SourceRanges),
		inState("source ranges and no endpoint: who may is refused", "S26",
			one(external(service{ranges: []sourceRange{{place: client}}})),
			traffic{from: []string{client}, to: []destination{toVIP}, want: refused},
			traffic{from: []string{client2}, to: []destination{toVIP}, want: dropped},
			traffic{from: []string{client, client2}, to: []destination{toExternalIP, toNodePort, toClusterIP},
				want: refused}).needing(SourceRanges),
	}
}

// detectorCases cover the ways to detect local pods (S30) and what depends on them.
func detectorCases() []trafficCase {
	// The detectors differ only in whether they treat pods of other nodes as local. Without a detector no pod is local.
	make := func(name string, d detector, remotePodsPass bool) trafficCase {
		others := []string{theNode, thirdNode, client}
		remote := masquerading(localPod1, remotePod1)
		remoteToLocal := keeping(localPod1)
		if remotePodsPass {
			remote, remoteToLocal = keeping(localPod1, remotePod1), keeping(localPod1, remotePod1)
		}
		return inState(name, "S27, S28, S30", []service{
			external(service{name: "cluster", endpoints: at(localPod1, remotePod1)}),
			external(service{name: "local", endpoints: at(localPod1, remotePod1), externalLocal: true}),
		},
			traffic{of: "cluster", from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
			traffic{of: "cluster", from: others, to: toCluster, want: masquerading(localPod1, remotePod1)},
			traffic{of: "cluster", from: []string{remotePod3}, to: toCluster, want: remote},
			traffic{of: "cluster", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
			traffic{of: "local", from: fromPod, to: externalDestinations, want: keeping(localPod1, remotePod1)},
			traffic{of: "local", from: []string{thirdNode, client}, to: externalDestinations,
				want: keeping(localPod1)},
			traffic{of: "local", from: []string{remotePod3}, to: externalDestinations, want: remoteToLocal},
			traffic{of: "local", from: fromNode, to: externalDestinations, want: masquerading(localPod1, remotePod1)}).
			in(setup{detector: d})
	}
	return []trafficCase{
		make("local pods are known by the node's CIDR", byNodeCIDR, false),
		make("local pods are known by the cluster's CIDR", byClusterCIDR, true),
		make(bridgeCase, byBridge, false),
		make(interfaceCase, byInterface, false),
		inState("without a detector nothing is masqueraded to cluster IPs, and pods are strangers to local services",
			"S27, S28, S30",
			[]service{
				external(service{name: "cluster", endpoints: at(localPod1, remotePod1)}),
				external(service{name: "local", endpoints: at(localPod1, remotePod1), externalLocal: true}),
				external(service{name: "far", endpoints: at(remotePod1), externalLocal: true}),
			},
			traffic{of: "cluster", from: fromAll, to: toCluster, want: keeping(localPod1, remotePod1)},
			traffic{of: "cluster", from: []string{localPod1}, to: toCluster,
				want: masquerading(localPod1).and(keeping(remotePod1))},
			traffic{of: "cluster", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
			traffic{of: "local", from: append(fromPod, fromOutside...), to: externalDestinations,
				want: keeping(localPod1)},
			traffic{of: "local", from: fromNode, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
			traffic{of: "far", from: append(fromPod, fromOutside...), to: externalDestinations, want: dropped},
			traffic{of: "far", from: fromNode, to: externalDestinations, want: masquerading(remotePod1)}).
			in(setup{detector: undetected}),
	}
}
