package conformance

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// bystanderCases are about traffic that is not for a service, and about processes of the node.
func bystanderCases() []testCase {
	return []testCase{
		{name: "traffic that is for no service is left alone, before, during and after changes", rules: "S46",
			run: bystandersAreLeftAlone},
		{name: "processes of the node that listen on all addresses get nothing that is for a service",
			rules: "S25, S33", run: serving(external(service{endpoints: at(localPod1, remotePod1)}),
				wildcardListenersGetNothing)},
	}
}

// Ports of servers that are there for these cases alone.
const (
	nodeProcessPort = 10250 // of a process on the node that listens on all addresses, as the kubelet does
	internetPort    = 443   // of a server outside the cluster
)

// internetAddr is the address of that server.
func internetAddr(f model.Family) netip.Addr { return network.Nth(network.PlanOf(f).Clients, 250) }

// bystander is traffic that no backend may touch, with the server that answers it.
type bystander struct {
	network.Attempt
	// server is the server that answers. The zero value: none answers, and the traffic leaves the node.
	server netip.AddrPort
}

// wrong returns what is wrong with an outcome, or nil.
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

// startBystanders starts the additional servers that bystanders need.
func (s *session) startBystanders() (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	for _, f := range s.env.Families {
		for _, server := range []struct {
			on       string
			protocol model.Protocol
			at       netip.AddrPort
		}{
			{theNode, model.TCP, network.Wildcard(f, nodeProcessPort)},
			{client, model.TCP, netip.AddrPortFrom(internetAddr(f), internetPort)},
			{client, model.UDP, netip.AddrPortFrom(internetAddr(f), internetPort)},
		} {
			end, err := s.n.Serve(server.on, server.protocol, server.at)
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
// Traffic to pods has source ports from the whole range.
func (s *session) bystanders() map[string][]bystander {
	list := map[string][]bystander{}
	bands := network.PortBands()
	for i, name := range []string{localPod1, localPod3, theNode, remotePod3, client} {
		from := network.PlaceNamed(name)
		for _, f := range s.env.Families {
			add := func(what string, protocol model.Protocol, to, server netip.AddrPort, bands ...network.PortBand) {
				for _, band := range bands {
					b := bystander{from.FlowTo(to, protocol, what), server}
					b.Ports = band
					list[name] = append(list[name], b)
				}
			}
			// Two of the bands, other ones for each source and family.
			some := []network.PortBand{bands[(2*i)%len(bands)], bands[(2*i+int(f))%len(bands)]}
			for _, pod := range []string{localPod2, remotePod1} {
				at := network.PlaceNamed(pod).ServerAt(f)
				add(pod, model.TCP, at, at, bands...)
				add(pod, model.UDP, at, at, some...)
			}
			process := netip.AddrPortFrom(network.PlanOf(f).HostAddresses()[1], nodeProcessPort)
			add("a process of the node", model.TCP, process, network.Wildcard(f, nodeProcessPort), some...)
			own := network.PlaceNamed(theNode).ServerAt(f)
			add("a process of the node", model.UDP, own, own, some...)
			if name == client {
				continue
			}
			internet := netip.AddrPortFrom(internetAddr(f), internetPort)
			add("a server outside", model.TCP, internet, internet, some...)
			add("a server outside", model.UDP, internet, internet, some...)
			nowhere := netip.AddrPortFrom(network.Nth(externalIPs(f), 240), internetPort)
			add("an address outside that nobody has", model.TCP, nowhere, netip.AddrPort{}, some...)
		}
	}
	return list
}

// checkBystanders tries each once.
func (s *session) checkBystanders(ctx context.Context) error {
	return s.tryBystanders(ctx, slices.Concat(slices.Collect(maps.Values(s.bystanders()))...))
}

// tryBystanders tries bystanders once, all at the same time.
func (s *session) tryBystanders(ctx context.Context, list []bystander) error {
	return each(list, func(b bystander) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return b.wrong(s.try(b.Attempt, s.patience.Patience))
	})
}

// standAside opens connections that are not for a service.
func (s *session) standAside() (standing, error) {
	var flows []network.Attempt
	for _, group := range s.bystanders() {
		for _, b := range group {
			if b.Protocol != model.TCP || !b.server.IsValid() ||
				b.Ports != network.PortBands()[0] && b.server.Port() == serverPort {
				continue // one of each kind will do
			}
			flows = append(flows, b.Attempt)
		}
	}
	return s.stand(flows)
}

// streamOfBystanders makes bystanders' connections, from each source one after the other, until it is stopped.
func (s *session) streamOfBystanders() *stream {
	var groups [][]streamed
	for _, group := range s.bystanders() {
		var list []streamed
		for _, b := range group {
			list = append(list, streamed{b.Attempt, func(seen network.Seen) error {
				if err := b.wrong(seen); err != nil || !seen.Lost {
					return err
				}
				return fmt.Errorf("flow: %v\nseen: %v\nwant: no packet to be lost", b.Attempt, seen)
			}})
		}
		groups = append(groups, list)
	}
	return s.stream(groups)
}

// bystandersAreLeftAlone gives pods all kinds of roles in services that are created, changed and deleted.
func bystandersAreLeftAlone(ctx context.Context, s *session) error {
	stop, err := s.startBystanders()
	if err != nil {
		return err
	}
	defer stop()
	if err := s.checkBystanders(ctx); err != nil {
		return fmt.Errorf("before there is a service:\n\n%w", err)
	}
	open, err := s.standAside()
	if err != nil {
		return err
	}
	defer open.close()
	st := s.streamOfBystanders()
	if err := st.during(func() error { return s.churnForBystanders(ctx, st) }); err != nil {
		return fmt.Errorf("while services came, changed and went:\n\n%w", err)
	}
	if err := s.checkBystanders(ctx); err != nil {
		return fmt.Errorf("after services had come, changed and gone:\n\n%w", err)
	}
	return open.check(s.patience)
}

func (s *session) churnForBystanders(ctx context.Context, st *stream) error {
	local := external(service{name: "local", slot: 7, externalLocal: true, internalLocal: true,
		endpoints: at(localPod2, remotePod1)})
	if !s.factory.lacks(SourceRanges) {
		local.ranges = []sourceRange{{place: client}}
	}
	waves := [][]service{
		append(sceneBefore().services, local),
		append(sceneAfter().services, local),
		{external(service{name: "web", slot: 1,
			endpoints: at(localPod1, localPod2, localPod3, remotePod1, remotePod3)})},
		{external(service{name: "web", slot: 1}), local},
		{},
		append(sceneBefore().services, local),
	}
	for i, wave := range waves {
		if err := s.put(ctx, wave...); err != nil {
			return err
		}
		if err := st.await(ctx, 5); err != nil {
			return err
		}
		if i != len(waves)/2 {
			continue
		}
		if err := s.restart(ctx); err != nil {
			return err
		}
		if err := st.await(ctx, 5); err != nil {
			return err
		}
	}
	if err := s.resync(ctx); err != nil {
		return err
	}
	return st.await(ctx, 5)
}

// wildcardListenersGetNothing has processes of the node listen on all addresses, on the ports of a service, on its node
// ports, and on a port that it does not have.
func wildcardListenersGetNothing(ctx context.Context, s *session, svc service) error {
	full := svc.withDefaults(0)
	for _, f := range s.env.Families {
		for i, p := range full.ports {
			for _, port := range []uint16{p.number, full.nodePortOf(i), nodeProcessPort} {
				stop, err := s.n.Serve(theNode, p.protocol, network.Wildcard(f, port))
				if err != nil {
					return err
				}
				defer stop()
			}
		}
	}
	unknown := service{name: "a process of the node", slot: full.slot, ports: []servicePort{
		{protocol: model.TCP, number: nodeProcessPort}, {protocol: model.UDP, number: nodeProcessPort}}}
	// Whether the ports that a service does not have refuse is another case.
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
		if err := s.step(ctx, st); err != nil {
			return fmt.Errorf("%s\n\n%w", st.then, err)
		}
		if err := s.nodeProcessAnswers(ctx); err != nil {
			return fmt.Errorf("%s\n\n%w", st.then, err)
		}
	}
	return nil
}

// nodeProcessAnswers tries the process on the node's own addresses.
func (s *session) nodeProcessAnswers(ctx context.Context) error {
	var list []bystander
	for _, f := range s.env.Families {
		for _, name := range fromAll {
			for _, to := range network.PlanOf(f).HostAddresses()[:2] {
				f := network.PlaceNamed(name).FlowTo(netip.AddrPortFrom(to, nodeProcessPort), model.TCP, "a process of the node")
				list = append(list, bystander{f, network.Wildcard(model.FamilyOf(to), nodeProcessPort)})
			}
		}
	}
	return s.tryBystanders(ctx, list)
}
