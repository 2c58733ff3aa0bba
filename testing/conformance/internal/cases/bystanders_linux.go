package cases

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

// bystanderCases cover traffic that is not for a service, and the node's own processes.
func bystanderCases() []Case {
	return []Case{
		{Name: "traffic that is for no service is left alone, before, during and after changes", Rules: "S46",
			run: bystandersAreLeftAlone},
		{Name: "processes of the node that listen on all addresses get nothing that is for a service",
			Rules: "S25, S33", run: serving(external(service{Endpoints: cluster.At(localPod1, remotePod1), ListsNode: true}),
				wildcardListenersGetNothing)},
		// Not for programs: they listen on the port of the health check themselves.
		{Name: "a health check at a VIP is not refused, where the node has the VIP", Rules: "S38, S62", Stepwise: true,
			run: serving(external(service{Endpoints: cluster.At(localPod1, remotePod1), ExternalLocal: true,
				HealthCheck: healthCheckPort}), healthChecksGetThrough)},
	}
}

// Ports of servers that only these cases start.
const (
	nodeProcessPort = 10250 // of a process on the node that listens on all addresses, like the kubelet
	internetPort    = 443   // of a server outside the cluster
	healthCheckPort = 32111 // of a service's health check
)

// internetAddr is the address of the server outside the cluster.
func internetAddr(f model.Family) netip.Addr { return network.Nth(network.PlanOf(f).Clients, 250) }

// bystander is traffic that no backend may touch, and the server that answers it.
type bystander struct {
	network.Attempt
	// server is the server that answers. Zero: the traffic leaves the node and nothing answers.
	server netip.AddrPort
}

// wrong returns an error if a bystander's outcome is not the expected one.
func (b bystander) wrong(s network.Seen) error {
	want := oracle.Observation{Verdict: oracle.NotOurs}
	if b.server.IsValid() {
		want = oracle.Observation{Verdict: oracle.Deliver, Endpoint: b.server, Source: b.Source}
	}
	if s.Observation == want && s.Broken == nil {
		return nil
	}
	return fmt.Errorf("flow: %v\nseen: %v\nwant: %v: this is for no service", b.Attempt, s, want)
}

// startBystanders starts the servers that bystanders need besides those of the network.
func (b *bed) startBystanders() (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	for _, f := range b.Env.Families {
		for _, server := range []struct {
			on       string
			protocol model.Protocol
			at       netip.AddrPort
		}{
			{theNode, model.TCP, network.Wildcard(f, nodeProcessPort)},
			{client, model.TCP, netip.AddrPortFrom(internetAddr(f), internetPort)},
			{client, model.UDP, netip.AddrPortFrom(internetAddr(f), internetPort)},
		} {
			end, err := b.Network.Serve(server.on, server.protocol, server.at)
			if err != nil {
				stop()
				return nil, err
			}
			stops = append(stops, end)
		}
	}
	return stop, nil
}

// bystanders returns, by source, the traffic between pods, to and from the outside, and to the node's own processes.
// The traffic to pods covers the whole range of source ports.
func (b *bed) bystanders() map[string][]bystander {
	list := map[string][]bystander{}
	bands := network.PortBands()
	for i, name := range []string{localPod1, localPod3, theNode, remotePod3, client} {
		from := network.HostNamed(name)
		for _, f := range b.Env.Families {
			add := func(what string, protocol model.Protocol, to, server netip.AddrPort, bands ...network.PortBand) {
				for _, band := range bands {
					y := bystander{from.FlowTo(to, protocol, what), server}
					y.Ports = band
					list[name] = append(list[name], y)
				}
			}
			// Two of the bands, different ones for each source and family.
			some := []network.PortBand{bands[(2*i)%len(bands)], bands[(2*i+int(f))%len(bands)]}
			for _, pod := range []string{localPod2, remotePod1} {
				at := network.HostNamed(pod).ServerAt(f)
				add(pod, model.TCP, at, at, bands...)
				add(pod, model.UDP, at, at, some...)
			}
			process := netip.AddrPortFrom(network.PlanOf(f).HostAddresses()[1], nodeProcessPort)
			add("a process of the node", model.TCP, process, network.Wildcard(f, nodeProcessPort), some...)
			own := network.HostNamed(theNode).ServerAt(f)
			add("a process of the node", model.UDP, own, own, some...)
			if name == client {
				continue
			}
			internet := netip.AddrPortFrom(internetAddr(f), internetPort)
			add("a server outside", model.TCP, internet, internet, some...)
			add("a server outside", model.UDP, internet, internet, some...)
			nowhere := netip.AddrPortFrom(network.Nth(cluster.ExternalIPs(f), 240), internetPort)
			add("an address outside that nobody has", model.TCP, nowhere, netip.AddrPort{}, some...)
		}
	}
	return list
}

// checkBystanders tries every bystander once.
func (b *bed) checkBystanders(ctx context.Context) error {
	return b.tryBystanders(ctx, slices.Concat(slices.Collect(maps.Values(b.bystanders()))...))
}

// tryBystanders tries bystanders once, concurrently.
func (b *bed) tryBystanders(ctx context.Context, list []bystander) error {
	return testbed.Each(list, func(y bystander) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return y.wrong(b.Try(y.Attempt, b.Timeouts.Timeouts))
	})
}

// standAside opens connections that are not for a service.
func (b *bed) standAside() (standing, error) {
	var flows []network.Attempt
	for _, group := range b.bystanders() {
		for _, y := range group {
			if y.Protocol != model.TCP || !y.server.IsValid() ||
				y.Ports != network.PortBands()[0] && y.server.Port() == serverPort {
				continue // one of each kind is enough
			}
			flows = append(flows, y.Attempt)
		}
	}
	return b.stand(flows)
}

// streamOfBystanders makes bystanders' connections until it is stopped, one at a time from each source.
func (b *bed) streamOfBystanders() *stream {
	var groups [][]streamed
	for _, group := range b.bystanders() {
		var list []streamed
		for _, y := range group {
			list = append(list, streamed{y.Attempt, func(seen network.Seen) error {
				if err := y.wrong(seen); err != nil || !seen.Lost {
					return err
				}
				return fmt.Errorf("flow: %v\nseen: %v\nwant: no packet to be lost", y.Attempt, seen)
			}})
		}
		groups = append(groups, list)
	}
	return b.stream(groups)
}

// bystandersAreLeftAlone uses pods in every role of services that it creates, changes and deletes.
func bystandersAreLeftAlone(ctx context.Context, b *bed) error {
	stop, err := b.startBystanders()
	if err != nil {
		return err
	}
	defer stop()
	if err := b.checkBystanders(ctx); err != nil {
		return fmt.Errorf("before there is a service:\n\n%w", err)
	}
	open, err := b.standAside()
	if err != nil {
		return err
	}
	defer open.close()
	st := b.streamOfBystanders()
	if err := st.during(func() error { return b.churnForBystanders(ctx, st) }); err != nil {
		return fmt.Errorf("while services came, changed and went:\n\n%w", err)
	}
	if err := b.checkBystanders(ctx); err != nil {
		return fmt.Errorf("after services had come, changed and gone:\n\n%w", err)
	}
	return open.check(b.Timeouts)
}

func (b *bed) churnForBystanders(ctx context.Context, st *stream) error {
	local := external(service{Name: "local", Slot: 7, ExternalLocal: true, InternalLocal: true,
		Endpoints: cluster.At(localPod2, remotePod1)})
	if !b.Factory.LacksFeature(backend.SourceRanges) {
		local.Ranges = []sourceRange{{Host: client}}
	}
	waves := [][]service{
		append(firstStep().services, local),
		append(secondStep().services, local),
		{external(service{Name: "web", Slot: 1,
			Endpoints: cluster.At(localPod1, localPod2, localPod3, remotePod1, remotePod3)})},
		{external(service{Name: "web", Slot: 1}), local},
		{},
		append(firstStep().services, local),
	}
	for i, wave := range waves {
		if err := b.Put(ctx, wave...); err != nil {
			return err
		}
		if err := st.await(ctx, 5); err != nil {
			return err
		}
		if i != len(waves)/2 {
			continue
		}
		if err := b.Restart(ctx); err != nil {
			return err
		}
		if err := st.await(ctx, 5); err != nil {
			return err
		}
	}
	if err := b.Resync(ctx); err != nil {
		return err
	}
	return st.await(ctx, 5)
}

// wildcardListenersGetNothing starts processes on the node that listen on all addresses: on a service's ports, on its
// node ports, and on a port that the service does not have. The service also lists an address of the node: there,
// connections to that last port must still reach the process (kubernetes#114815).
func wildcardListenersGetNothing(ctx context.Context, b *bed, svc service) error {
	full := svc.WithDefaults(0)
	for _, f := range b.Env.Families {
		for i, p := range full.Ports {
			for _, port := range []uint16{p.Number, full.NodePortOf(i), nodeProcessPort} {
				stop, err := b.Network.Serve(theNode, p.Protocol, network.Wildcard(f, port))
				if err != nil {
					return err
				}
				defer stop()
			}
		}
	}
	unknown := service{Name: "a process of the node", Slot: full.Slot, Ports: []servicePort{
		{Protocol: model.TCP, Number: nodeProcessPort}, {Protocol: model.UDP, Number: nodeProcessPort}}}
	// Another case checks that unused ports of a service are refused.
	guard := []traffic{{as: &unknown, from: fromAll, to: toCluster, want: refused},
		{as: &unknown, from: fromAll, to: []destination{toExternalIP, toVIP}, want: leftAlone.orElseRefused()}}
	empty := external(service{})
	for _, st := range []step{
		{services: one(svc), traffic: append(guard,
			traffic{from: fromAll, to: everywhere, want: keeping(localPod1, remotePod1)})},
		{then: "there is no endpoint", services: one(empty), traffic: append(guard, refusing(traffic{})...)},
		{then: "the service has gone", traffic: []traffic{
			{as: &full, from: fromAll, to: []destination{toClusterIP, toExternalIP, toVIP}, want: leftAlone}}},
	} {
		if err := b.step(ctx, st); err != nil {
			return fmt.Errorf("%s\n\n%w", st.then, err)
		}
		if err := b.nodeProcessAnswers(ctx); err != nil {
			return fmt.Errorf("%s\n\n%w", st.then, err)
		}
	}
	return nil
}

// healthChecksGetThrough probes the VIP at the port of the service's health check: the node itself answers if the
// backend gives it the VIP. A backend may otherwise leave the probe alone, and may refuse it at other addresses.
func healthChecksGetThrough(ctx context.Context, b *bed, svc service) error {
	full := svc.WithDefaults(0)
	var list []network.Attempt
	for _, f := range b.Env.Families {
		stop, err := b.Network.Serve(theNode, model.TCP, network.Wildcard(f, healthCheckPort))
		if err != nil {
			return err
		}
		defer stop()
		for _, name := range fromAll {
			to := netip.AddrPortFrom(full.VIPAddr(f), healthCheckPort)
			list = append(list, network.HostNamed(name).FlowTo(to, model.TCP, "the health check at the VIP"))
		}
	}
	return testbed.Each(list, func(a network.Attempt) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		seen := b.Try(a, b.Timeouts.Timeouts)
		node := network.Wildcard(model.FamilyOf(a.Destination.Addr()), healthCheckPort)
		if seen.Verdict == oracle.NotOurs || seen.Verdict == oracle.Deliver && seen.Endpoint == node {
			return nil
		}
		return fmt.Errorf("flow: %v\nseen: %v\nwant: delivered to the node, or left alone", a, seen)
	})
}

// nodeProcessAnswers connects to the process at the node's own addresses.
func (b *bed) nodeProcessAnswers(ctx context.Context) error {
	var list []bystander
	for _, f := range b.Env.Families {
		for _, name := range fromAll {
			for _, to := range network.PlanOf(f).HostAddresses()[:2] {
				f := network.HostNamed(name).FlowTo(netip.AddrPortFrom(to, nodeProcessPort), model.TCP, "a process of the node")
				list = append(list, bystander{f, network.Wildcard(model.FamilyOf(to), nodeProcessPort)})
			}
		}
	}
	return b.tryBystanders(ctx, list)
}
