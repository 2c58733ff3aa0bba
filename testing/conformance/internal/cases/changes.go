package cases

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
)

// changeCases cover changes of state: nothing of the old state may remain, and other services are not affected.
func changeCases() []trafficCase {
	// bystander is an unchanged service, which must not be affected.
	bystander := external(service{Name: "bystander", Slot: 9, Endpoints: cluster.At(localPod2, remotePod2)})
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
	web := func(eps []endpoint) service {
		return external(service{Slot: 1, Endpoints: eps})
	}

	return []trafficCase{
		inTurn("the first endpoint ends the refusal, the last one's end begins it", "S25",
			step{services: with(web(nil)), traffic: and(refusing(traffic{})...)},
			step{then: "an endpoint comes", services: with(web(cluster.At(remotePod1))), traffic: reached(remotePod1)},
			step{then: "it goes", services: with(web(nil)), traffic: and(refusing(traffic{})...)},
			step{then: "another one comes", services: with(web(cluster.At(localPod1))), traffic: reached(localPod1)}),
		inTurn("endpoints come and go", "S21",
			step{services: with(web(cluster.At(localPod1))), traffic: reached(localPod1)},
			step{then: "one to three", services: with(web(cluster.At(localPod1, localPod2, remotePod1))),
				traffic: reached(localPod1, localPod2, remotePod1)},
			step{then: "one of three is replaced", services: with(web(cluster.At(localPod1, remotePod2, remotePod1))),
				traffic: reached(localPod1, remotePod2, remotePod1)},
			step{then: "three to two", services: with(web(cluster.At(remotePod2, remotePod1))),
				traffic: reached(remotePod2, remotePod1)},
			step{then: "all are replaced", services: with(web(cluster.At(localPod1, localPod2))),
				traffic: reached(localPod1, localPod2)},
			step{then: "two to five", services: with(web(cluster.At(localPod1, localPod2, remotePod1, remotePod2, remotePod3))),
				traffic: reached(localPod1, localPod2, remotePod1, remotePod2, remotePod3)},
			step{then: "five to one", services: with(web(cluster.At(remotePod3))), traffic: reached(remotePod3)}),
		inTurn("an endpoint that terminates gets nothing new, and gets it back when it is the last", "S21",
			step{services: with(web(cluster.At(localPod1, remotePod1))), traffic: reached(localPod1, remotePod1)},
			step{then: "one terminates",
				services: with(web(append(cluster.At(localPod1), cluster.InPhase(cluster.Terminating, remotePod1)...))),
				traffic:  reached(localPod1)},
			step{then: "the other one has gone", services: with(web(cluster.InPhase(cluster.Terminating, remotePod1))),
				traffic: reached(remotePod1)}),
		inTurn("an endpoint's port changes", "S15",
			step{services: with(web(cluster.At(localPod1))), traffic: reached(localPod1)},
			step{then: "to another one", services: with(web([]endpoint{{At: localPod1, Target: serverPort2}})),
				traffic: and(
					traffic{from: fromPod, to: toCluster, want: keeping(localPod1).on(serverPort2)})}),
		inTurn("a service that has gone is served no more", "S12",
			step{services: with(web(cluster.At(localPod1, remotePod1))), traffic: reached(localPod1, remotePod1)},
			step{then: "it goes", services: with(), traffic: and(
				traffic{from: fromAll, to: externalDestinations, as: &service{Name: "web", Slot: 1},
					want: leftAlone},
				traffic{from: fromAll, to: toCluster, as: &service{Name: "web", Slot: 1}, want: dropped})},
			step{then: "it comes back", services: with(web(cluster.At(localPod1))), traffic: reached(localPod1)}),
		inTurn("addresses move between services in one wave", "S12",
			step{services: []service{
				external(service{Name: "a", Slot: 1, Endpoints: cluster.At(localPod1)}),
				external(service{Name: "b", Slot: 2, Endpoints: cluster.At(remotePod1)})},
				traffic: []traffic{
					{of: "a", from: fromPod, to: toCluster, want: keeping(localPod1)},
					{of: "b", from: fromPod, to: toCluster, want: keeping(remotePod1)}}},
			step{then: "they swap", services: []service{
				external(service{Name: "a", Slot: 2, Endpoints: cluster.At(localPod1)}),
				external(service{Name: "b", Slot: 1, Endpoints: cluster.At(remotePod1)})},
				traffic: []traffic{
					{of: "a", from: fromPod, to: toCluster, want: keeping(localPod1)},
					{of: "b", from: fromPod, to: toCluster, want: keeping(remotePod1)},
					{of: "a", from: []string{client}, to: externalDestinations, want: masquerading(localPod1)},
					{of: "b", from: []string{client}, to: externalDestinations, want: masquerading(remotePod1)}}},
			step{then: "a new service takes over the first one's", services: []service{
				external(service{Name: "b", Slot: 1, Endpoints: cluster.At(remotePod1)}),
				external(service{Name: "c", Slot: 2, Endpoints: cluster.At(remotePod2)})},
				traffic: []traffic{
					{of: "b", from: fromPod, to: toCluster, want: keeping(remotePod1)},
					{of: "c", from: fromPod, to: toCluster, want: keeping(remotePod2)},
					{of: "c", from: []string{client}, to: externalDestinations, want: masquerading(remotePod2)}}}),
		inTurn("external addresses come and go", "S7, S10",
			step{services: with(service{Slot: 1, Endpoints: cluster.At(localPod1)}), traffic: and(
				traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
				traffic{from: fromOutside, to: externalDestinations, want: leftAlone})},
			step{then: "they come", services: with(web(cluster.At(localPod1))), traffic: reached(localPod1)},
			step{then: "the VIP alone stays", services: with(service{Slot: 1, VIP: true, Endpoints: cluster.At(localPod1)}),
				traffic: and(
					traffic{from: fromOutside, to: []destination{toVIP}, want: masquerading(localPod1)},
					traffic{from: fromOutside, to: []destination{toExternalIP, toNodePort}, want: leftAlone})},
			step{then: "the node port alone stays",
				services: with(service{Slot: 1, NodePort: true, Endpoints: cluster.At(localPod1)}), traffic: and(
					traffic{from: fromOutside, to: []destination{toNodePort}, want: masquerading(localPod1)},
					traffic{from: fromOutside, to: []destination{toExternalIP, toVIP}, want: leftAlone})}),
		inTurn("traffic policies change", "S27, S28",
			step{services: one(web(cluster.At(localPod1, remotePod1))), traffic: []traffic{
				{from: fromOutside, to: externalDestinations, want: masquerading(localPod1, remotePod1)}}},
			step{then: "external traffic policy Local",
				services: one(external(service{Slot: 1, Endpoints: cluster.At(localPod1, remotePod1),
					ExternalLocal: true})),
				traffic: []traffic{{from: fromOutside, to: externalDestinations, want: keeping(localPod1)}}},
			step{then: "the local endpoint goes",
				services: one(external(service{Slot: 1, Endpoints: cluster.At(remotePod1), ExternalLocal: true})),
				traffic:  []traffic{{from: fromOutside, to: externalDestinations, want: dropped}}},
			step{then: "external traffic policy Cluster", services: one(web(cluster.At(remotePod1))), traffic: []traffic{
				{from: fromOutside, to: externalDestinations, want: masquerading(remotePod1)}}},
			step{then: "internal traffic policy Local",
				services: one(external(service{Slot: 1, Endpoints: cluster.At(localPod1, remotePod1),
					InternalLocal: true})),
				traffic: []traffic{
					{from: fromPod, to: toCluster, want: keeping(localPod1)},
					{from: fromOutside, to: externalDestinations, want: masquerading(localPod1, remotePod1)}}}),
		inTurn("ports of a service come, change and go", "S4",
			step{services: with(external(service{Slot: 1, Endpoints: cluster.At(localPod1),
				Ports: []servicePort{{Name: "a", Protocol: model.TCP}}})),
				traffic: and(traffic{from: fromPod, to: toCluster, want: keeping(localPod1)})},
			step{then: "a second one comes",
				services: with(external(service{Slot: 1, Endpoints: cluster.At(localPod1), Ports: []servicePort{
					{Name: "a", Protocol: model.TCP},
					{Name: "b", Protocol: model.TCP, Number: 90, Target: serverPort2}}})),
				traffic: and(
					traffic{from: fromPod, to: toCluster, ports: []string{"a"}, want: keeping(localPod1)},
					traffic{from: fromPod, to: toCluster, ports: []string{"b"},
						want: keeping(localPod1).on(serverPort2)})},
			step{then: "they swap their numbers",
				services: with(external(service{Slot: 1, Endpoints: cluster.At(localPod1), Ports: []servicePort{
					{Name: "a", Protocol: model.TCP, Number: 90},
					{Name: "b", Protocol: model.TCP, Number: 80, Target: serverPort2}}})),
				traffic: and(
					traffic{from: fromPod, to: toCluster, ports: []string{"a"}, want: keeping(localPod1)},
					traffic{from: fromPod, to: toCluster, ports: []string{"b"},
						want: keeping(localPod1).on(serverPort2)})},
			step{then: "the protocol changes",
				services: with(external(service{Slot: 1, Endpoints: cluster.At(localPod1), Ports: []servicePort{
					{Name: "a", Protocol: model.UDP}}})),
				traffic: and(
					traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
					traffic{from: fromPod, to: toCluster,
						as:   &service{Name: "web", Slot: 1, Ports: []servicePort{{Protocol: model.TCP}}},
						want: refused})}),
		inTurn("a service gets and loses a family", "S2",
			step{services: with(external(service{Slot: 1, Families: []model.Family{model.IPv4},
				Endpoints: cluster.At(localPod1)})),
				traffic: and(traffic{from: fromPod, to: toCluster, want: keeping(localPod1)})},
			step{then: "it becomes dual-stack", services: with(web(cluster.At(localPod1))), traffic: reached(localPod1)},
			step{then: "it is IPv6 alone",
				services: with(external(service{Slot: 1, Families: []model.Family{model.IPv6},
					Endpoints: cluster.At(localPod1)})),
				traffic: and(
					traffic{from: fromPod, to: toCluster, want: keeping(localPod1)},
					traffic{from: fromOutside, to: externalDestinations, only: model.IPv4,
						as: &service{Name: "web", Slot: 1}, want: leftAlone})}).needing(backend.IPv4, backend.IPv6),
		inTurn("session affinity is switched on and off", "S32",
			step{services: with(web(cluster.At(localPod1, remotePod1))), traffic: reached(localPod1, remotePod1)},
			step{then: "on", services: with(external(service{Slot: 1, Endpoints: cluster.At(localPod1, remotePod1),
				Affinity: time.Hour})),
				traffic: and(traffic{from: fromPod, to: toCluster, want: keeping(localPod1, remotePod1)})},
			step{then: "off", services: with(web(cluster.At(localPod1, remotePod1))), traffic: reached(localPod1, remotePod1)}).
			needing(backend.SessionAffinity),
	}
}
