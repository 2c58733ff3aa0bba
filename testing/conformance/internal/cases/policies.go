package cases

import (
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
)

// policyCases cover traffic policies, masquerading, source ranges and detectors: S25 to S30.
func policyCases() []trafficCase {
	both := cluster.At(localPod1, remotePod1)
	return []trafficCase{
		inState("internal traffic policy Local keeps to the node, and does not change masquerading", "S28",
			one(external(service{InternalLocal: true, Endpoints: both})),
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(localPod1)},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)}),
		inState("internal traffic policy Local without a local endpoint drops on the cluster IP alone", "S25",
			one(external(service{InternalLocal: true, Endpoints: cluster.At(remotePod1)})),
			traffic{from: fromAll, to: toCluster, want: dropped},
			traffic{from: fromAll, to: externalDestinations, want: masquerading(remotePod1)}),
		inTurn("internal traffic policy Local on a service that is internal only", "S23, S25",
			step{services: one(service{InternalLocal: true, Endpoints: cluster.At(remotePod1)}), traffic: []traffic{
				{from: fromAll, to: toCluster, want: dropped},
			}},
			step{then: "a local endpoint comes", services: one(service{InternalLocal: true, Endpoints: both}),
				traffic: []traffic{
					{from: fromPod, to: toCluster, want: keeping(localPod1)},
				}},
			step{then: "all endpoints go", services: one(service{InternalLocal: true}), traffic: []traffic{
				{from: fromAll, to: toCluster, want: refused},
			}}),
		inState("external traffic policy Local keeps to the node and keeps the source", "S27",
			one(external(service{ExternalLocal: true, Endpoints: cluster.At(localPod1, localPod2, remotePod1)})),
			traffic{from: fromOutside, to: externalDestinations, want: keeping(localPod1, localPod2)},
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1, localPod2, remotePod1)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(localPod1, localPod2, remotePod1)}),
		inState("external traffic policy Local: pods and the node itself reach all endpoints, the node with source NAT",
			"S27",
			one(external(service{ExternalLocal: true, Endpoints: both})),
			traffic{from: fromPod, to: externalDestinations, want: keeping(localPod1, remotePod1)},
			traffic{from: fromNode, to: externalDestinations, want: masquerading(localPod1, remotePod1)}),
		inState("external traffic policy Local without a local endpoint drops what comes from outside", "S25, S27",
			one(external(service{ExternalLocal: true, Endpoints: cluster.At(remotePod1)})),
			traffic{from: fromOutside, to: externalDestinations, want: dropped},
			traffic{from: fromPod, to: everywhere, want: keeping(remotePod1)},
			traffic{from: fromNode, to: externalDestinations, want: masquerading(remotePod1)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(remotePod1)}),
		inState("external traffic policy Local without any endpoint anywhere refuses", "S25",
			one(external(service{ExternalLocal: true})), refusing(traffic{})...),
		inState("both policies Local", "S25, S27, S28",
			one(external(service{ExternalLocal: true, InternalLocal: true, Endpoints: both})),
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
			traffic{from: fromNonPods, to: toCluster, want: masquerading(localPod1)},
			traffic{from: fromOutside, to: externalDestinations, want: keeping(localPod1)},
			traffic{from: fromPod, to: externalDestinations, want: keeping(localPod1, remotePod1)}),
		inState("a pod that reaches itself through a service is masqueraded", "S29", []service{
			external(service{Name: "cluster", Endpoints: both}),
			external(service{Name: "local", Endpoints: both, ExternalLocal: true}),
			external(service{Name: "alone", Endpoints: cluster.At(localPod1)}),
		},
			traffic{of: "cluster", from: []string{localPod1}, to: toCluster,
				want: masquerading(localPod1).and(keeping(remotePod1))},
			traffic{of: "local", from: []string{localPod1}, to: everywhere,
				want: masquerading(localPod1).and(keeping(remotePod1))},
			traffic{of: "alone", from: []string{localPod1}, to: everywhere, want: masquerading(localPod1)}),
		inState("masquerade-all masquerades pods to cluster IPs, and nothing else", "S28", []service{
			external(service{Name: "cluster", Endpoints: both}),
			external(service{Name: "local", ExternalLocal: true, Endpoints: both}),
		},
			traffic{of: "cluster", from: fromAll, to: toCluster, want: masquerading(localPod1, remotePod1)},
			traffic{of: "local", from: fromPod, to: externalDestinations, want: keeping(localPod1, remotePod1)},
			traffic{of: "local", from: fromOutside, to: externalDestinations, want: keeping(localPod1)}).
			in(setup{MasqueradeAll: true}),
		inState("source ranges guard the VIP alone", "S26",
			one(external(service{Endpoints: both, Ranges: []sourceRange{{Host: client}}})),
			traffic{from: []string{client}, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
			traffic{from: []string{client2, localPod3, theNode, remotePod3}, to: []destination{toVIP}, want: dropped},
			traffic{from: append(fromNonPods, client2, localPod3), to: []destination{toExternalIP, toNodePort},
				want: masquerading(localPod1, remotePod1)},
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}).needing(backend.SourceRanges),
		inState("source ranges that hold pods and the node let them in", "S26",
			one(external(service{Endpoints: both, ExternalLocal: true,
				Ranges: []sourceRange{{Pods: true}, {Host: theNode}}})),
			traffic{from: fromPod, to: []destination{toVIP}, want: keeping(localPod1, remotePod1)},
			traffic{from: fromNode, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
			traffic{from: fromOutside, to: []destination{toVIP}, want: dropped},
			traffic{from: fromOutside, to: []destination{toExternalIP, toNodePort}, want: keeping(localPod1)}).
			needing(backend.SourceRanges),
		inState("source ranges of one family leave the other one open", "S8", one(external(service{Endpoints: both,
			Ranges: []sourceRange{{Host: client, Only: model.IPv6}}})),
			traffic{from: []string{client, client2}, to: []destination{toVIP}, only: model.IPv4,
				want: masquerading(localPod1, remotePod1)},
			traffic{from: []string{client}, to: []destination{toVIP}, only: model.IPv6,
				want: masquerading(localPod1, remotePod1)},
			traffic{from: []string{client2}, to: []destination{toVIP}, only: model.IPv6, want: dropped}).
			needing(backend.SourceRanges, backend.IPv4, backend.IPv6),
		inTurn("source ranges come, change and go", "S26",
			step{services: one(external(service{Endpoints: both})), traffic: []traffic{
				{from: []string{client, client2}, to: []destination{toVIP},
					want: masquerading(localPod1, remotePod1)}}},
			step{then: "client-2 alone may",
				services: one(external(service{Endpoints: both, Ranges: []sourceRange{{Host: client2}}})),
				traffic: []traffic{
					{from: []string{client2}, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
					{from: []string{client}, to: []destination{toVIP}, want: dropped}}},
			step{then: "client alone may",
				services: one(external(service{Endpoints: both, Ranges: []sourceRange{{Host: client}}})),
				traffic: []traffic{
					{from: []string{client}, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
					{from: []string{client2}, to: []destination{toVIP}, want: dropped}}},
			step{then: "all may again", services: one(external(service{Endpoints: both})), traffic: []traffic{
				{from: []string{client, client2}, to: []destination{toVIP},
					want: masquerading(localPod1, remotePod1)}}}).needing(backend.SourceRanges),
		inState("source ranges and no endpoint: who may is refused", "S26",
			one(external(service{Ranges: []sourceRange{{Host: client}}})),
			traffic{from: []string{client}, to: []destination{toVIP}, want: refused},
			traffic{from: []string{client2}, to: []destination{toVIP}, want: dropped},
			traffic{from: []string{client, client2}, to: []destination{toExternalIP, toNodePort, toClusterIP},
				want: refused}).needing(backend.SourceRanges),
	}
}

// detectorCases cover the ways to detect local pods (S30) and what depends on them.
func detectorCases() []trafficCase {
	// The detectors differ only in whether they treat pods of other nodes as local. Without a detector no pod is local.
	make := func(name string, d cluster.Detector, remotePodsPass bool) trafficCase {
		others := []string{theNode, thirdNode, client}
		remote := masquerading(localPod1, remotePod1)
		remoteToLocal := keeping(localPod1)
		if remotePodsPass {
			remote, remoteToLocal = keeping(localPod1, remotePod1), keeping(localPod1, remotePod1)
		}
		return inState(name, "S27, S28, S30", []service{
			external(service{Name: "cluster", Endpoints: cluster.At(localPod1, remotePod1)}),
			external(service{Name: "local", Endpoints: cluster.At(localPod1, remotePod1), ExternalLocal: true}),
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
			in(setup{Detector: d})
	}
	return []trafficCase{
		make("local pods are known by the node's CIDR", cluster.ByNodeCIDR, false),
		make("local pods are known by the cluster's CIDR", cluster.ByClusterCIDR, true),
		make(backend.BridgeCase, cluster.ByBridge, false),
		make(backend.InterfaceCase, cluster.ByInterface, false),
		inState("without a detector nothing is masqueraded to cluster IPs, and pods are strangers to local services",
			"S27, S28, S30",
			[]service{
				external(service{Name: "cluster", Endpoints: cluster.At(localPod1, remotePod1)}),
				external(service{Name: "local", Endpoints: cluster.At(localPod1, remotePod1), ExternalLocal: true}),
				external(service{Name: "far", Endpoints: cluster.At(remotePod1), ExternalLocal: true}),
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
			in(setup{Detector: cluster.Undetected}),
	}
}
