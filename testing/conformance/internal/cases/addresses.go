package cases

import (
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
)

// addressCases cover node-port addresses and unused ports and addresses: S33, S35, S36.
func addressCases() []trafficCase {
	both := cluster.At(localPod1, remotePod1)
	onOtherAddress := []destination{toOtherNodePort}
	proxied := []servicePort{{Name: "tcp", Protocol: model.TCP}, {Name: "udp", Protocol: model.UDP}}
	toLoopback := []destination{toLoopbackNodePort}
	return []trafficCase{
		inState("node ports are served on the node's own address only, if that is what is asked for", "S35",
			one(service{NodePort: true, Endpoints: both}),
			traffic{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
			traffic{from: fromAll, to: onOtherAddress, want: leftAlone}).needing(backend.NodePortAddresses),
		inState("a node port without endpoints refuses where it is served and nowhere else", "S25, S35",
			one(service{NodePort: true}),
			traffic{from: fromAll, to: []destination{toNodePort}, want: refused}),
		inState("node ports are served on all addresses, if no range is given", "S35",
			one(service{NodePort: true, Endpoints: both}),
			traffic{from: fromAll, to: []destination{toNodePort, toOtherNodePort},
				want: masquerading(localPod1, remotePod1)}).in(setup{NodePorts: cluster.OnAllAddresses}),
		inState("node-port ranges of one family say nothing about the other one", "S35",
			one(service{NodePort: true, Endpoints: both}),
			traffic{from: fromAll, to: onOtherAddress, want: masquerading(localPod1, remotePod1)},
			traffic{from: fromAll, to: []destination{toNodePort}, only: model.IPv4, want: leftAlone},
			traffic{from: fromAll, to: []destination{toNodePort}, only: model.IPv6,
				want: masquerading(localPod1, remotePod1)}).needing(backend.IPv4).in(setup{NodePorts: cluster.OnOtherIPv4Only}),
		inState("node ports are served on 127.0.0.1, and never on ::1", "S36",
			one(service{NodePort: true, Endpoints: both}),
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv4,
				want: masquerading(localPod1, remotePod1)},
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv6, want: leftAlone},
			traffic{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)}).
			in(setup{NodePorts: cluster.OnLocalhostToo}),
		inTurn("a proxy serves node ports on 127.0.0.1 and ::1", "S36a",
			step{services: one(service{NodePort: true, Ports: proxied, Endpoints: both}), traffic: []traffic{
				{from: fromNode, to: toLoopback, want: masquerading(localPod1, remotePod1)},
				{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
			}},
			step{then: "an endpoint goes", services: one(service{NodePort: true, Ports: proxied,
				Endpoints: cluster.At(remotePod1)}), traffic: []traffic{
				{from: fromNode, to: toLoopback, want: masquerading(remotePod1)},
			}},
			step{then: "the last one goes", services: one(service{NodePort: true, Ports: proxied}),
				traffic: []traffic{{from: fromNode, to: toLoopback, want: refused}}},
			step{then: "one comes", services: one(service{NodePort: true, Ports: proxied, Endpoints: cluster.At(localPod1)}),
				traffic: []traffic{{from: fromNode, to: toLoopback, want: masquerading(localPod1)}}},
			step{then: "the service goes", traffic: []traffic{{from: fromNode, to: toLoopback, want: leftAlone,
				as: &service{NodePort: true, Ports: proxied}}}}).in(setup{NodePorts: cluster.OnLoopbackByProxy}),
		inTurn("a proxy of node ports on loopback addresses keeps to the node with traffic policy Local", "S36a",
			step{services: one(service{NodePort: true, ExternalLocal: true, Ports: proxied, Endpoints: both}),
				traffic: []traffic{
					{from: fromNode, to: toLoopback, want: masquerading(localPod1)},
					{from: fromNode, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
				}},
			step{then: "the local endpoint goes", services: one(service{NodePort: true, ExternalLocal: true,
				Ports: proxied, Endpoints: cluster.At(remotePod1)}), traffic: []traffic{
				{from: fromNode, to: toLoopback, want: refused},
			}}).in(setup{NodePorts: cluster.OnLoopbackByProxy}),
		inState("the node's primary address and ranges add up, and other families have the primary address alone", "S35",
			one(service{NodePort: true, Endpoints: both}),
			traffic{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
			traffic{from: fromAll, to: onOtherAddress, only: model.IPv4, want: masquerading(localPod1, remotePod1)},
			traffic{from: fromAll, to: onOtherAddress, only: model.IPv6, want: leftAlone}).
			needing(backend.IPv4).in(setup{NodePorts: cluster.OnPrimaryAndOtherIPv4}),
		inState("the node's primary address and localhost add up", "S35, S36",
			one(service{NodePort: true, Endpoints: both}),
			traffic{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
			traffic{from: fromAll, to: onOtherAddress, want: leftAlone},
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv4,
				want: masquerading(localPod1, remotePod1)},
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv6, want: leftAlone}).
			in(setup{NodePorts: cluster.OnPrimaryAndLocalhost}),
		inState("localhost alone is no other address of either family", "S35, S36",
			one(service{NodePort: true, Endpoints: both}),
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv4,
				want: masquerading(localPod1, remotePod1)},
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv6, want: leftAlone},
			traffic{from: fromAll, to: []destination{toNodePort, toOtherNodePort}, want: leftAlone}).
			in(setup{NodePorts: cluster.OnLocalhostAlone}),
		inState("node ports are not served on 127.0.0.1 unless it is asked for", "S36",
			one(service{NodePort: true, Endpoints: both}),
			traffic{from: fromNode, to: []destination{toLoopbackNodePort}, want: leftAlone}).
			in(setup{NodePorts: cluster.OnAllAddresses}),
		inState(unknownPortsCase, "S33", one(service{Endpoints: both}),
			traffic{from: fromAll, to: []destination{toUnknownPort}, want: refused.strictly()},
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}).needing(backend.UnusedAddresses),
		inState(backend.ExternalPortsCase, "S33", one(service{Slot: 1, ExternalIP: true, VIP: true, Endpoints: both}),
			traffic{as: &service{Name: "other", Slot: 1, Ports: []servicePort{{Protocol: model.TCP, Number: 81}}},
				from: fromAll,
				to:   []destination{toExternalIP, toVIP}, want: leftAlone}),
		inTurn("a load balancer with ipMode Proxy is left to itself", "S7",
			step{services: one(external(service{VIPByProxy: true, Endpoints: both})), traffic: []traffic{
				{from: fromAll, to: []destination{toVIP}, want: leftAlone},
				{from: fromAll, to: []destination{toExternalIP, toNodePort}, want: masquerading(localPod1, remotePod1)}}},
			step{then: "ipMode becomes VIP", services: one(external(service{Endpoints: both})), traffic: []traffic{
				{from: fromAll, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)}}},
			step{then: "ipMode becomes Proxy again", services: one(external(service{VIPByProxy: true, Endpoints: both})),
				traffic: []traffic{{from: fromAll, to: []destination{toVIP}, want: leftAlone}}}),
		inTurn("a Service of another service proxy is left to it", "S1",
			step{services: one(external(service{OtherProxy: true, Endpoints: both})), traffic: []traffic{
				{from: fromAll, to: externalDestinations, want: leftAlone},
				{from: fromAll, to: toCluster, want: dropped}}},
			step{then: "the label goes", services: one(external(service{Endpoints: both})), traffic: []traffic{
				{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
				{from: fromAll, to: externalDestinations, want: masquerading(localPod1, remotePod1)}}},
			step{then: "it comes back", services: one(external(service{OtherProxy: true, Endpoints: both})),
				traffic: []traffic{
					{from: fromAll, to: externalDestinations, want: leftAlone},
					{from: fromAll, to: toCluster, want: dropped}}}),
		inState("addresses of the service CIDRs that no service has are dropped", "S33",
			one(service{Endpoints: both}),
			traffic{from: fromAll, to: []destination{toUnallocatedAddress}, want: dropped.strictly()},
			traffic{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)}).needing(backend.UnusedAddresses),
		{
			name: "a VIP is an allowed source if the ranges name it", rules: "S26",
			needs:      []backend.Feature{backend.SourceRanges},
			vipsOnNode: true,
			steps: []step{
				{services: one(service{VIP: true, Endpoints: both,
					Ranges: []sourceRange{{Host: theNode}}}), traffic: []traffic{
					{from: fromNode, to: []destination{toVIP}, asVIP: true, want: masquerading(localPod1, remotePod1)},
					{from: fromNode, to: []destination{toVIP}, want: masquerading(localPod1, remotePod1)},
				}},
				{then: "they no longer do",
					services: one(service{VIP: true, Endpoints: both, Ranges: []sourceRange{{Host: client}}}),
					traffic: []traffic{
						{from: fromNode, to: []destination{toVIP}, asVIP: true, want: dropped},
					}},
			},
		},
	}
}
