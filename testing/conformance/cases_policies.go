package conformance

import "sigs.k8s.io/kube-proxy-lib/model"

// policyCases are about traffic policies, masquerading, source ranges and detectors: S25 to S30.
func policyCases() []trafficCase {
	both := at(localPod1, remotePod1)
	return []trafficCase{
		{
			name: "internal traffic policy Local keeps to the node, and does not change masquerading", rules: "S28",
			steps: []step{{
				services: one(external(service{internalLocal: true, endpoints: both})),
				traffic: []traffic{
					{from: fromPod, to: toCluster, want: keeping(localPod1)},
					{from: fromNonPods, to: toCluster, want: masquerading(localPod1)},
					{from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
				}}},
		},
		{
			name: "internal traffic policy Local without a local endpoint drops on the cluster IP alone", rules: "S25",
			steps: []step{{
				services: one(external(service{internalLocal: true, endpoints: at(remotePod1)})),
				traffic: []traffic{
					{from: fromAll, to: toCluster, want: dropped},
					{from: fromAll, to: externalDestinations, want: masquerading(remotePod1)},
				}}},
		},
		{
			name: "internal traffic policy Local on a service that is internal only", rules: "S23, S25",
			steps: []step{
				{services: one(service{internalLocal: true, endpoints: at(remotePod1)}), traffic: []traffic{
					{from: fromAll, to: toCluster, want: dropped},
				}},
				{then: "a local endpoint comes", services: one(service{internalLocal: true, endpoints: both}),
					traffic: []traffic{
						{from: fromPod, to: toCluster, want: keeping(localPod1)},
					}},
				{then: "all endpoints go", services: one(service{internalLocal: true}), traffic: []traffic{
					{from: fromAll, to: toCluster, want: refused},
				}},
			},
		},
		{
			name: "external traffic policy Local keeps to the node and keeps the source", rules: "S27",
			steps: []step{{
				services: one(external(service{externalLocal: true, endpoints: at(localPod1, localPod2, remotePod1)})),
				traffic: []traffic{
					{from: fromOutside, to: externalDestinations, want: keeping(localPod1, localPod2)},
					{from: fromPod, to: toCluster, want: keeping(localPod1, localPod2, remotePod1)},
					{from: fromNonPods, to: toCluster, want: masquerading(localPod1, localPod2, remotePod1)},
				}}},
		},
		{
			name:  "external traffic policy Local: pods and the node itself reach all endpoints, the node with source NAT",
			rules: "S27",
			steps: []step{{
				services: one(external(service{externalLocal: true, endpoints: both})),
				traffic: []traffic{
					{from: fromPod, to: externalDestinations, want: keeping(localPod1, remotePod1)},
					{from: fromNode, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
				}}},
		},
		{
			name:  "external traffic policy Local without a local endpoint drops what comes from outside",
			rules: "S25, S27",
			steps: []step{{
				services: one(external(service{externalLocal: true, endpoints: at(remotePod1)})),
				traffic: []traffic{
					{from: fromOutside, to: externalDestinations, want: dropped},
					{from: fromPod, to: everywhere, want: keeping(remotePod1)},
					{from: fromNode, to: externalDestinations, want: masquerading(remotePod1)},
					{from: fromNonPods, to: toCluster, want: masquerading(remotePod1)},
				}}},
		},
		{
			name: "external traffic policy Local without any endpoint anywhere refuses", rules: "S25",
			steps: []step{{services: one(external(service{externalLocal: true})), traffic: []traffic{
				{from: fromAll, to: everywhere, want: refused},
			}}},
		},
		{
			name: "both policies Local", rules: "S25, S27, S28",
			steps: []step{{
				services: one(external(service{externalLocal: true, internalLocal: true, endpoints: both})),
				traffic: []traffic{
					{from: fromPod, to: toCluster, want: keeping(localPod1)},
					{from: fromNonPods, to: toCluster, want: masquerading(localPod1)},
					{from: fromOutside, to: externalDestinations, want: keeping(localPod1)},
					{from: fromPod, to: externalDestinations, want: keeping(localPod1, remotePod1)},
				}}},
		},
		{
			name: "a pod that reaches itself through a service is masqueraded", rules: "S29",
			steps: []step{{
				services: []service{
					external(service{name: "cluster", endpoints: both}),
					external(service{name: "local", endpoints: both, externalLocal: true}),
					external(service{name: "alone", endpoints: at(localPod1)}),
				},
				traffic: []traffic{
					{of: "cluster", from: []string{localPod1}, to: toCluster,
						want: masquerading(localPod1).and(keeping(remotePod1))},
					{of: "local", from: []string{localPod1}, to: everywhere,
						want: masquerading(localPod1).and(keeping(remotePod1))},
					{of: "alone", from: []string{localPod1}, to: everywhere, want: masquerading(localPod1)},
				}}},
		},
		{
			name: "masquerade-all masquerades pods to cluster IPs, and nothing else", rules: "S28",
			setup: setup{masqueradeAll: true},
			steps: []step{{
				services: []service{
					external(service{name: "cluster", endpoints: both}),
					external(service{name: "local", externalLocal: true, endpoints: both}),
				},
				traffic: []traffic{
					{of: "cluster", from: fromAll, to: toCluster, want: masquerading(localPod1, remotePod1)},
					{of: "local", from: fromPod, to: externalDestinations, want: keeping(localPod1, remotePod1)},
					{of: "local", from: fromOutside, to: externalDestinations, want: keeping(localPod1)},
				}}},
		},
		{
			name: "source ranges guard the VIP alone", rules: "S26", needs: []Feature{SourceRanges},
			steps: []step{{
				services: one(external(service{endpoints: both, ranges: []sourceRange{{place: client}}})),
				traffic: []traffic{
					{from: []string{client}, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
					{from: []string{client2, localPod3, theNode, remotePod3}, to: []destination{toVIP}, want: dropped},
					{from: append(fromNonPods, client2, localPod3), to: []destination{toExternalIP, toNodePort},
						want: masquerading(localPod1, remotePod1)},
					{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
				}}},
		},
		{
			name: "source ranges that hold pods and the node let them in", rules: "S26", needs: []Feature{SourceRanges},
			steps: []step{{
				services: one(external(service{endpoints: both, externalLocal: true,
					ranges: []sourceRange{{pods: true}, {place: theNode}}})),
				traffic: []traffic{
					{from: fromPod, to: []destination{toVIP}, want: keeping(localPod1, remotePod1)},
					{from: fromNode, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
					{from: fromOutside, to: []destination{toVIP}, want: dropped},
					{from: fromOutside, to: []destination{toExternalIP, toNodePort}, want: keeping(localPod1)},
				}}},
		},
		{
			name: "source ranges of one family leave the other one open", rules: "S8",
			needs: []Feature{SourceRanges, IPv4, IPv6},
			steps: []step{{
				services: one(external(service{endpoints: both,
					ranges: []sourceRange{{place: client, only: model.IPv6}}})),
				traffic: []traffic{
					{from: []string{client, client2}, to: []destination{toVIP}, only: model.IPv4,
						want: masquerading(localPod1, remotePod1)},
					{from: []string{client}, to: []destination{toVIP}, only: model.IPv6,
						want: masquerading(localPod1, remotePod1)},
					{from: []string{client2}, to: []destination{toVIP}, only: model.IPv6, want: dropped},
				}}},
		},
		{
			name: "source ranges come, change and go", rules: "S26", needs: []Feature{SourceRanges},
			steps: []step{
				{services: one(external(service{endpoints: both})), traffic: []traffic{
					{from: []string{client, client2}, to: []destination{toVIP},
						want: masquerading(localPod1, remotePod1)}}},
				{then: "client-2 alone may",
					services: one(external(service{endpoints: both, ranges: []sourceRange{{place: client2}}})),
					traffic: []traffic{
						{from: []string{client2}, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
						{from: []string{client}, to: []destination{toVIP}, want: dropped}}},
				{then: "client alone may",
					services: one(external(service{endpoints: both, ranges: []sourceRange{{place: client}}})),
					traffic: []traffic{
						{from: []string{client}, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
						{from: []string{client2}, to: []destination{toVIP}, want: dropped}}},
				{then: "all may again", services: one(external(service{endpoints: both})), traffic: []traffic{
					{from: []string{client, client2}, to: []destination{toVIP},
						want: masquerading(localPod1, remotePod1)}}},
			},
		},
		{
			name: "source ranges and no endpoint: who may is refused", rules: "S26", needs: []Feature{SourceRanges},
			steps: []step{{
				services: one(external(service{ranges: []sourceRange{{place: client}}})),
				traffic: []traffic{
					{from: []string{client}, to: []destination{toVIP}, want: refused},
					{from: []string{client2}, to: []destination{toVIP}, want: dropped}, // or refused
					{from: []string{client, client2}, to: []destination{toExternalIP, toNodePort, toClusterIP},
						want: refused},
				}}},
		},
	}
}

// detectorCases are about the ways to tell local pods from other sources (S30), and what depends on them.
func detectorCases() []trafficCase {
	// The detectors only differ in whether they treat pods of other nodes as local; without any, no pod is local.
	make := func(name string, d detector, remotePodsPass bool) trafficCase {
		others := []string{theNode, thirdNode, client}
		remote := masquerading(localPod1, remotePod1)
		remoteToLocal := keeping(localPod1)
		if remotePodsPass {
			remote, remoteToLocal = keeping(localPod1, remotePod1), keeping(localPod1, remotePod1)
		}
		return trafficCase{
			name: name, rules: "S27, S28, S30", setup: setup{detector: d},
			steps: []step{{
				services: []service{
					external(service{name: "cluster", endpoints: at(localPod1, remotePod1)}),
					external(service{name: "local", endpoints: at(localPod1, remotePod1), externalLocal: true}),
				},
				traffic: []traffic{
					{of: "cluster", from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
					{of: "cluster", from: others, to: toCluster, want: masquerading(localPod1, remotePod1)},
					{of: "cluster", from: []string{remotePod3}, to: toCluster, want: remote},
					{of: "cluster", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
					{of: "local", from: fromPod, to: externalDestinations, want: keeping(localPod1, remotePod1)},
					{of: "local", from: []string{thirdNode, client}, to: externalDestinations,
						want: keeping(localPod1)},
					{of: "local", from: []string{remotePod3}, to: externalDestinations, want: remoteToLocal},
					{of: "local", from: fromNode, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
				}}},
		}
	}
	return []trafficCase{
		make("local pods are known by the node's CIDR", byNodeCIDR, false),
		make("local pods are known by the cluster's CIDR", byClusterCIDR, true),
		make("local pods are known by the bridge that they are behind", byBridge, false),
		make("local pods are known by the names of their interfaces", byInterface, false),
		{
			name:  "without a detector nothing is masqueraded to cluster IPs, and pods are strangers to local services",
			rules: "S27, S28, S30", setup: setup{detector: undetected},
			steps: []step{{
				services: []service{
					external(service{name: "cluster", endpoints: at(localPod1, remotePod1)}),
					external(service{name: "local", endpoints: at(localPod1, remotePod1), externalLocal: true}),
					external(service{name: "far", endpoints: at(remotePod1), externalLocal: true}),
				},
				traffic: []traffic{
					{of: "cluster", from: fromAll, to: toCluster, want: keeping(localPod1, remotePod1)},
					{of: "cluster", from: []string{localPod1}, to: toCluster,
						want: masquerading(localPod1).and(keeping(remotePod1))},
					{of: "cluster", from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
					{of: "local", from: append(fromPod, fromOutside...), to: externalDestinations,
						want: keeping(localPod1)},
					{of: "local", from: fromNode, to: externalDestinations, want: masquerading(localPod1, remotePod1)},
					{of: "far", from: append(fromPod, fromOutside...), to: externalDestinations, want: dropped},
					{of: "far", from: fromNode, to: externalDestinations, want: masquerading(remotePod1)},
				}}},
		},
	}
}
