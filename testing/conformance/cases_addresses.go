package conformance

import "sigs.k8s.io/kube-proxy-lib/model"

// addressCases are about node-port addresses and what is next to service addresses: S33, S35, S36.
func addressCases() []trafficCase {
	both := at(localPod1, remotePod1)
	onOtherAddress := []destination{toOtherNodePort}
	proxied := []servicePort{{name: "tcp", protocol: model.TCP}, {name: "udp", protocol: model.UDP}}
	toLoopback := []destination{toLoopbackNodePort}
	return []trafficCase{
		{
			name: "node ports are served on the node's own address only, if that is what is asked for", rules: "S35",
			needs: []Feature{NodePortAddresses},
			steps: []step{{services: one(service{nodePort: true, endpoints: both}), traffic: []traffic{
				{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
				{from: fromAll, to: onOtherAddress, want: leftAlone},
			}}},
		},
		{
			name: "a node port without endpoints refuses where it is served and nowhere else", rules: "S25, S35",
			steps: []step{{services: one(service{nodePort: true}), traffic: []traffic{
				{from: fromAll, to: []destination{toNodePort}, want: refused},
			}}},
		},
		{
			name: "node ports are served on all addresses, if no range is given", rules: "S35",
			setup: setup{nodePorts: onAllAddresses},
			steps: []step{{services: one(service{nodePort: true, endpoints: both}), traffic: []traffic{
				{from: fromAll, to: []destination{toNodePort, toOtherNodePort},
					want: masquerading(localPod1, remotePod1)},
			}}},
		},
		{
			name: "node-port ranges of one family say nothing about the other one", rules: "S35",
			setup: setup{nodePorts: onOtherIPv4Only}, needs: []Feature{IPv4},
			steps: []step{{services: one(service{nodePort: true, endpoints: both}), traffic: []traffic{
				{from: fromAll, to: onOtherAddress, want: masquerading(localPod1, remotePod1)},
				{from: fromAll, to: []destination{toNodePort}, only: model.IPv4, want: leftAlone},
				{from: fromAll, to: []destination{toNodePort}, only: model.IPv6,
					want: masquerading(localPod1, remotePod1)},
			}}},
		},
		{
			name: "node ports are served on 127.0.0.1, and never on ::1", rules: "S36",
			setup: setup{nodePorts: onLocalhostToo},
			steps: []step{{services: one(service{nodePort: true, endpoints: both}), traffic: []traffic{
				{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv4,
					want: masquerading(localPod1, remotePod1)},
				{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv6, want: leftAlone},
				{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
			}}},
		},
		{
			name: "a proxy serves node ports on 127.0.0.1 and ::1", rules: "S36a",
			setup: setup{nodePorts: onLoopbackByProxy},
			steps: []step{
				{services: one(service{nodePort: true, ports: proxied, endpoints: both}), traffic: []traffic{
					{from: fromNode, to: toLoopback, want: masquerading(localPod1, remotePod1)},
					{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
				}},
				{then: "an endpoint goes", services: one(service{nodePort: true, ports: proxied,
					endpoints: at(remotePod1)}), traffic: []traffic{
					{from: fromNode, to: toLoopback, want: masquerading(remotePod1)},
				}},
				{then: "the last one goes", services: one(service{nodePort: true, ports: proxied}),
					traffic: []traffic{{from: fromNode, to: toLoopback, want: refused}}},
				{then: "one comes", services: one(service{nodePort: true, ports: proxied, endpoints: at(localPod1)}),
					traffic: []traffic{{from: fromNode, to: toLoopback, want: masquerading(localPod1)}}},
				{then: "the service goes", traffic: []traffic{{from: fromNode, to: toLoopback, want: leftAlone,
					as: &service{nodePort: true, ports: proxied}}}},
			},
		},
		{
			name: "a proxy of node ports on loopback addresses keeps to the node with traffic policy Local", rules: "S36a",
			setup: setup{nodePorts: onLoopbackByProxy},
			steps: []step{
				{services: one(service{nodePort: true, externalLocal: true, ports: proxied, endpoints: both}),
					traffic: []traffic{
						{from: fromNode, to: toLoopback, want: masquerading(localPod1)},
						{from: fromNode, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
					}},
				{then: "the local endpoint goes", services: one(service{nodePort: true, externalLocal: true,
					ports: proxied, endpoints: at(remotePod1)}), traffic: []traffic{
					{from: fromNode, to: toLoopback, want: refused},
				}},
			},
		},
		{
			name:  "the node's primary address and ranges add up, and other families have the primary address alone",
			rules: "S35", setup: setup{nodePorts: onPrimaryAndOtherIPv4}, needs: []Feature{IPv4},
			steps: []step{{services: one(service{nodePort: true, endpoints: both}), traffic: []traffic{
				{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
				{from: fromAll, to: onOtherAddress, only: model.IPv4, want: masquerading(localPod1, remotePod1)},
				{from: fromAll, to: onOtherAddress, only: model.IPv6, want: leftAlone},
			}}},
		},
		{
			name: "the node's primary address and localhost add up", rules: "S35, S36",
			setup: setup{nodePorts: onPrimaryAndLocalhost},
			steps: []step{{services: one(service{nodePort: true, endpoints: both}), traffic: []traffic{
				{from: fromAll, to: []destination{toNodePort}, want: masquerading(localPod1, remotePod1)},
				{from: fromAll, to: onOtherAddress, want: leftAlone},
				{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv4,
					want: masquerading(localPod1, remotePod1)},
				{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv6, want: leftAlone},
			}}},
		},
		{
			name: "localhost alone is no other address of either family", rules: "S35, S36",
			setup: setup{nodePorts: onLocalhostAlone},
			steps: []step{{services: one(service{nodePort: true, endpoints: both}), traffic: []traffic{
				{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv4,
					want: masquerading(localPod1, remotePod1)},
				{from: fromNode, to: []destination{toLoopbackNodePort}, only: model.IPv6, want: leftAlone},
				{from: fromAll, to: []destination{toNodePort, toOtherNodePort}, want: leftAlone},
			}}},
		},
		{
			name: "node ports are not served on 127.0.0.1 unless it is asked for", rules: "S36",
			setup: setup{nodePorts: onAllAddresses},
			steps: []step{{services: one(service{nodePort: true, endpoints: both}), traffic: []traffic{
				{from: fromNode, to: []destination{toLoopbackNodePort}, want: leftAlone},
			}}},
		},
		{
			name: "other ports of a cluster IP are refused", rules: "S33", needs: []Feature{UnknownPorts},
			steps: []step{{services: one(service{endpoints: both}), traffic: []traffic{
				{from: fromAll, to: []destination{toUnknownPort}, want: refused.strictly()},
				{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
			}}},
		},
		{
			name: "other ports of external addresses are left alone", rules: "S33", needs: []Feature{ExternalPorts},
			steps: []step{{services: one(service{slot: 1, externalIP: true, vip: true, endpoints: both}),
				traffic: []traffic{
					{as: &service{name: "other", slot: 1, ports: []servicePort{{protocol: model.TCP, number: 81}}},
						from: fromAll,
						to:   []destination{toExternalIP, toVIP}, want: leftAlone},
				}}},
		},
		{
			name: "addresses of the service CIDRs that no service has are dropped", rules: "S33",
			needs: []Feature{UnallocatedAddresses},
			steps: []step{{services: one(service{endpoints: both}), traffic: []traffic{
				{from: fromAll, to: []destination{toUnallocatedAddress}, want: dropped.strictly()},
				{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)},
			}}},
		},
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
