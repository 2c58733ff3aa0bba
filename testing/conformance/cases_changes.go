package conformance

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// changeCases are about going from one state to the next: nothing of the old one stays, and nothing else is touched.
func changeCases() []trafficCase {
	// bystander is a service next to the ones that change; it must not notice.
	bystander := external(service{name: "bystander", slot: 9, endpoints: at(localPod2, remotePod2)})
	undisturbed := []traffic{
		{of: "bystander", from: fromPod, to: toCluster, want: keeping(localPod2, remotePod2)},
		{of: "bystander", from: fromOutside, to: externalDestinations, want: masquerading(localPod2, remotePod2)},
	}
	with := func(services ...service) []service { return append(services, bystander) }
	and := func(tr ...traffic) []traffic { return append(tr, undisturbed...) }
	reached := func(places ...string) []traffic {
		return and(traffic{from: fromPod, to: toCluster, want: keeping(places...)},
			traffic{from: []string{client, theNode}, to: externalDestinations, want: masquerading(places...)})
	}
	web := func(eps []endpoint) service { return external(service{slot: 1, endpoints: eps}) }

	return []trafficCase{
		{
			name: "the first endpoint ends the refusal, the last one's end begins it", rules: "S25",
			steps: []step{
				{services: with(web(nil)), traffic: and(traffic{from: fromAll, to: everywhere, want: refused})},
				{then: "an endpoint comes", services: with(web(at(remotePod1))), traffic: reached(remotePod1)},
				{then: "it goes", services: with(web(nil)),
					traffic: and(traffic{from: fromAll, to: everywhere, want: refused})},
				{then: "another one comes", services: with(web(at(localPod1))), traffic: reached(localPod1)},
			},
		},
		{
			name: "endpoints come and go", rules: "S21",
			steps: []step{
				{services: with(web(at(localPod1))), traffic: reached(localPod1)},
				{then: "one to three", services: with(web(at(localPod1, localPod2, remotePod1))),
					traffic: reached(localPod1, localPod2, remotePod1)},
				{then: "one of three is replaced", services: with(web(at(localPod1, remotePod2, remotePod1))),
					traffic: reached(localPod1, remotePod2, remotePod1)},
				{then: "three to two", services: with(web(at(remotePod2, remotePod1))),
					traffic: reached(remotePod2, remotePod1)},
				{then: "all are replaced", services: with(web(at(localPod1, localPod2))),
					traffic: reached(localPod1, localPod2)},
				{then: "two to five", services: with(web(at(localPod1, localPod2, remotePod1, remotePod2, remotePod3))),
					traffic: reached(localPod1, localPod2, remotePod1, remotePod2, remotePod3)},
				{then: "five to one", services: with(web(at(remotePod3))), traffic: reached(remotePod3)},
			},
		},
		{
			name: "an endpoint that terminates gets nothing new, and gets it back when it is the last", rules: "S21",
			steps: []step{
				{services: with(web(at(localPod1, remotePod1))), traffic: reached(localPod1, remotePod1)},
				{then: "one terminates",
					services: with(web(append(at(localPod1), inPhase(terminating, remotePod1)...))),
					traffic:  reached(localPod1)},
				{then: "the other one has gone", services: with(web(inPhase(terminating, remotePod1))),
					traffic: reached(remotePod1)},
			},
		},
		{
			name: "an endpoint's port changes", rules: "S15",
			steps: []step{
				{services: with(web(at(localPod1))), traffic: reached(localPod1)},
				{then: "to another one", services: with(web([]endpoint{{at: localPod1, target: serverPort2}})),
					traffic: and(
						traffic{from: fromPod, to: toCluster, want: keeping(localPod1).on(serverPort2)})},
			},
		},
		{
			name: "a service that has gone is served no more", rules: "S12",
			steps: []step{
				{services: with(web(at(localPod1, remotePod1))), traffic: reached(localPod1, remotePod1)},
				{then: "it goes", services: with(), traffic: and(
					traffic{from: fromAll, to: externalDestinations, as: &service{name: "web", slot: 1},
						want: leftAlone},
					traffic{from: fromAll, to: toCluster, as: &service{name: "web", slot: 1}, want: dropped})},
				{then: "it comes back", services: with(web(at(localPod1))), traffic: reached(localPod1)},
			},
		},
		{
			name: "addresses move between services in one wave", rules: "S12",
			steps: []step{
				{services: []service{
					external(service{name: "a", slot: 1, endpoints: at(localPod1)}),
					external(service{name: "b", slot: 2, endpoints: at(remotePod1)})},
					traffic: []traffic{
						{of: "a", from: fromPod, to: toCluster, want: keeping(localPod1)},
						{of: "b", from: fromPod, to: toCluster, want: keeping(remotePod1)}}},
				{then: "they swap", services: []service{
					external(service{name: "a", slot: 2, endpoints: at(localPod1)}),
					external(service{name: "b", slot: 1, endpoints: at(remotePod1)})},
					traffic: []traffic{
						{of: "a", from: fromPod, to: toCluster, want: keeping(localPod1)},
						{of: "b", from: fromPod, to: toCluster, want: keeping(remotePod1)},
						{of: "a", from: []string{client}, to: externalDestinations, want: masquerading(localPod1)},
						{of: "b", from: []string{client}, to: externalDestinations, want: masquerading(remotePod1)}}},
				{then: "a new service takes over the first one's", services: []service{
					external(service{name: "b", slot: 1, endpoints: at(remotePod1)}),
					external(service{name: "c", slot: 2, endpoints: at(remotePod2)})},
					traffic: []traffic{
						{of: "b", from: fromPod, to: toCluster, want: keeping(remotePod1)},
						{of: "c", from: fromPod, to: toCluster, want: keeping(remotePod2)},
						{of: "c", from: []string{client}, to: externalDestinations, want: masquerading(remotePod2)}}},
			},
		},
		{
			name: "external addresses come and go", rules: "S7, S10",
			steps: []step{
				{services: with(service{slot: 1, endpoints: at(localPod1)}), traffic: and(
					traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
					traffic{from: fromOutside, to: externalDestinations, want: leftAlone})},
				{then: "they come", services: with(web(at(localPod1))), traffic: reached(localPod1)},
				{then: "the VIP alone stays", services: with(service{slot: 1, vip: true, endpoints: at(localPod1)}),
					traffic: and(
						traffic{from: fromOutside, to: []destination{toVIP}, want: masquerading(localPod1)},
						traffic{from: fromOutside, to: []destination{toExternalIP, toNodePort}, want: leftAlone})},
				{then: "the node port alone stays",
					services: with(service{slot: 1, nodePort: true, endpoints: at(localPod1)}), traffic: and(
						traffic{from: fromOutside, to: []destination{toNodePort}, want: masquerading(localPod1)},
						traffic{from: fromOutside, to: []destination{toExternalIP, toVIP}, want: leftAlone})},
			},
		},
		{
			name: "traffic policies change", rules: "S27, S28",
			steps: []step{
				{services: one(web(at(localPod1, remotePod1))), traffic: []traffic{
					{from: fromOutside, to: externalDestinations, want: masquerading(localPod1, remotePod1)}}},
				{then: "external traffic policy Local",
					services: one(external(service{slot: 1, endpoints: at(localPod1, remotePod1),
						externalLocal: true})),
					traffic: []traffic{{from: fromOutside, to: externalDestinations, want: keeping(localPod1)}}},
				{then: "the local endpoint goes",
					services: one(external(service{slot: 1, endpoints: at(remotePod1), externalLocal: true})),
					traffic:  []traffic{{from: fromOutside, to: externalDestinations, want: dropped}}},
				{then: "external traffic policy Cluster", services: one(web(at(remotePod1))), traffic: []traffic{
					{from: fromOutside, to: externalDestinations, want: masquerading(remotePod1)}}},
				{then: "internal traffic policy Local",
					services: one(external(service{slot: 1, endpoints: at(localPod1, remotePod1),
						internalLocal: true})),
					traffic: []traffic{
						{from: fromPod, to: toCluster, want: keeping(localPod1)},
						{from: fromOutside, to: externalDestinations, want: masquerading(localPod1, remotePod1)}}},
			},
		},
		{
			name: "ports of a service come, change and go", rules: "S4",
			steps: []step{
				{services: with(external(service{slot: 1, endpoints: at(localPod1),
					ports: []servicePort{{name: "a", protocol: model.TCP}}})),
					traffic: and(traffic{from: fromPod, to: toCluster, want: keeping(localPod1)})},
				{then: "a second one comes",
					services: with(external(service{slot: 1, endpoints: at(localPod1), ports: []servicePort{
						{name: "a", protocol: model.TCP},
						{name: "b", protocol: model.TCP, number: 90, target: serverPort2}}})),
					traffic: and(
						traffic{from: fromPod, to: toCluster, ports: []string{"a"}, want: keeping(localPod1)},
						traffic{from: fromPod, to: toCluster, ports: []string{"b"},
							want: keeping(localPod1).on(serverPort2)})},
				{then: "they swap their numbers",
					services: with(external(service{slot: 1, endpoints: at(localPod1), ports: []servicePort{
						{name: "a", protocol: model.TCP, number: 90},
						{name: "b", protocol: model.TCP, number: 80, target: serverPort2}}})),
					traffic: and(
						traffic{from: fromPod, to: toCluster, ports: []string{"a"}, want: keeping(localPod1)},
						traffic{from: fromPod, to: toCluster, ports: []string{"b"},
							want: keeping(localPod1).on(serverPort2)})},
				{then: "the protocol changes",
					services: with(external(service{slot: 1, endpoints: at(localPod1), ports: []servicePort{
						{name: "a", protocol: model.UDP}}})),
					traffic: and(
						traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
						traffic{from: fromPod, to: toCluster,
							as:   &service{name: "web", slot: 1, ports: []servicePort{{protocol: model.TCP}}},
							want: refused})},
			},
		},
		{
			name: "a service gets and loses a family", rules: "S2", needs: []Feature{IPv4, IPv6},
			steps: []step{
				{services: with(external(service{slot: 1, families: []model.Family{model.IPv4},
					endpoints: at(localPod1)})),
					traffic: and(traffic{from: fromPod, to: toCluster, want: keeping(localPod1)})},
				{then: "it becomes dual-stack", services: with(web(at(localPod1))), traffic: reached(localPod1)},
				{then: "it is IPv6 alone",
					services: with(external(service{slot: 1, families: []model.Family{model.IPv6},
						endpoints: at(localPod1)})),
					traffic: and(
						traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
						traffic{from: fromOutside, to: externalDestinations, only: model.IPv4,
							as: &service{name: "web", slot: 1}, want: leftAlone})},
			},
		},
		{
			name: "session affinity is switched on and off", rules: "S32", needs: []Feature{SessionAffinity},
			steps: []step{
				{services: with(web(at(localPod1, remotePod1))), traffic: reached(localPod1, remotePod1)},
				{then: "on", services: with(external(service{slot: 1, endpoints: at(localPod1, remotePod1),
					affinity: time.Hour})),
					traffic: and(traffic{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)})},
				{then: "off", services: with(web(at(localPod1, remotePod1))), traffic: reached(localPod1, remotePod1)},
			},
		},
	}
}
