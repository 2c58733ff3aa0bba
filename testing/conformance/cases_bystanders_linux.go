package conformance

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// bystanderCases are about traffic that is not for a service, and about processes of the node.
func bystanderCases() []testCase {
	return []testCase{
		{name: "traffic that is for no service is left alone, before, during and after changes", rules: "S46",
			run: bystandersAreLeftAlone},
		{name: "processes of the node that listen on all addresses get nothing that is for a service",
			rules: "S25, S33",
			needs: []Feature{WildcardListeners}, run: wildcardListenersGetNothing},
	}
}

// Ports of servers that are there for these cases alone.
const (
	nodeProcessPort = 10250 // of a process on the node that listens on all addresses, as the kubelet does
	internetPort    = 443   // of a server outside the cluster
)

// internetAddr is the address of that server.
func internetAddr(f model.Family) netip.Addr { return nth(planOf(f).clients, 250) }

// wildcard is all addresses of a family.
func wildcard(f model.Family, port uint16) netip.AddrPort {
	if f == model.IPv6 {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), port)
}

// bystander is traffic that no backend may touch, with the server that answers it.
type bystander struct {
	flow
	// server is the server that answers. The zero value: none answers, and the traffic leaves the node.
	server netip.AddrPort
}

// wrong returns what is wrong with an outcome, or "".
func (b bystander) wrong(s seen) string {
	want := oracle.Observation{Verdict: oracle.NotOurs}
	if b.server.IsValid() {
		want = oracle.Observation{Verdict: oracle.Deliver, Endpoint: b.server, Source: b.Source}
	}
	if s.Observation == want && s.broken == nil {
		return ""
	}
	return fmt.Sprintf("flow: %v\nseen: %v\nwant: %v: this is for no service", b.flow, s, want)
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
			ns       *namespace
			protocol model.Protocol
			at       netip.AddrPort
		}{
			{s.n.node, model.TCP, wildcard(f, nodeProcessPort)},
			{s.n.client, model.TCP, netip.AddrPortFrom(internetAddr(f), internetPort)},
			{s.n.client, model.UDP, netip.AddrPortFrom(internetAddr(f), internetPort)},
		} {
			end, err := s.n.servers.serve(server.ns, server.protocol, server.at)
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
	bands := portBands()
	for i, name := range []string{localPod1, localPod3, theNode, remotePod3, client} {
		from := placeNamed(name)
		for _, f := range s.env.Families {
			add := func(what string, protocol model.Protocol, to, server netip.AddrPort, bands ...portBand) {
				for _, band := range bands {
					list[name] = append(list[name], bystander{server: server, flow: flow{from: from, ports: band,
						about: name + " to " + what, Flow: oracle.Flow{
							From: from.kind, Source: from.addr(f), Destination: to, Protocol: protocol}}})
				}
			}
			// Two of the bands, other ones for each source and family.
			some := []portBand{bands[(2*i)%len(bands)], bands[(2*i+int(f))%len(bands)]}
			for _, pod := range []string{localPod2, remotePod1} {
				at := serverAt(placeNamed(pod), f)
				add(pod, model.TCP, at, at, bands...)
				add(pod, model.UDP, at, at, some...)
			}
			process := netip.AddrPortFrom(planOf(f).hostAddresses()[1], nodeProcessPort)
			add("a process of the node", model.TCP, process, wildcard(f, nodeProcessPort), some...)
			own := serverAt(placeNamed(theNode), f)
			add("a process of the node", model.UDP, own, own, some...)
			if name == client {
				continue
			}
			internet := netip.AddrPortFrom(internetAddr(f), internetPort)
			add("a server outside", model.TCP, internet, internet, some...)
			add("a server outside", model.UDP, internet, internet, some...)
			nowhere := netip.AddrPortFrom(nth(planOf(f).externalIPs, 240), internetPort)
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
	var flows []attempt
	for _, b := range list {
		flows = append(flows, attempt{flow: b.flow})
	}
	var failed failures
	for i, seen := range s.n.tryAll(ctx, flows, s.patience) {
		if why := list[i].wrong(seen); why != "" {
			failed.add(why)
		}
	}
	return failed.err()
}

// standAside opens connections that are not for a service.
func (s *session) standAside() (*standing, error) {
	st := &standing{}
	for _, group := range s.bystanders() {
		for _, b := range group {
			if b.Protocol != model.TCP || !b.server.IsValid() ||
				b.ports != portBands()[0] && b.server.Port() == serverPort {
				continue // one of each kind will do
			}
			if err := st.open(s, b.flow); err != nil {
				st.close()
				return nil, err
			}
		}
	}
	return st, nil
}

// streamOfBystanders makes bystanders' connections, from each source one after the other, until it is stopped.
func (s *session) streamOfBystanders() *stream {
	var groups [][]streamed
	for _, group := range s.bystanders() {
		var list []streamed
		for _, b := range group {
			list = append(list, streamed{b.flow, func(seen seen) string {
				if why := b.wrong(seen); why != "" || !seen.lost {
					return why
				}
				return fmt.Sprintf("flow: %v\nseen: %v\nwant: no packet to be lost", b.flow, seen)
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
	err = s.churnForBystanders(ctx, st)
	if failed := st.end(); failed != nil {
		return fmt.Errorf("while services came, changed and went:\n\n%w", failed)
	}
	if err != nil {
		return err
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
	if err := s.resync(); err != nil {
		return err
	}
	if err := s.sync(ctx); err != nil {
		return fmt.Errorf("sync after ForceResync: %w", err)
	}
	return st.await(ctx, 5)
}

// wildcardListenersGetNothing has processes of the node listen on all addresses, on the ports of a service, on its node
// ports, and on a port that it does not have.
func wildcardListenersGetNothing(ctx context.Context, s *session) error {
	svc := external(service{endpoints: at(localPod1, remotePod1)})
	full := svc.withDefaults(0)
	for _, f := range s.env.Families {
		for i, p := range full.ports {
			for _, port := range []uint16{p.number, full.nodePortOf(i), nodeProcessPort} {
				stop, err := s.n.servers.serve(s.n.node, p.protocol, wildcard(f, port))
				if err != nil {
					return err
				}
				defer stop()
			}
		}
	}
	unknown := service{name: "a process of the node", slot: full.slot, ports: []servicePort{
		{protocol: model.TCP, number: nodeProcessPort}, {protocol: model.UDP, number: nodeProcessPort}}}
	noPort := leftAlone
	if !s.factory.lacks(UnknownPorts) {
		noPort = refused.strictly()
	}
	guard := []traffic{{as: &unknown, from: fromAll, to: toCluster, want: noPort}}
	if !s.factory.lacks(ExternalPorts) {
		guard = append(guard,
			traffic{as: &unknown, from: fromAll, to: []destination{toExternalIP, toVIP}, want: leftAlone})
	}
	empty := external(service{})
	for _, st := range []step{
		{services: one(svc), traffic: append(guard,
			traffic{from: fromAll, to: everywhere, want: keeping(localPod1, remotePod1)})},
		{then: "there is no endpoint", services: one(empty), traffic: append(guard,
			traffic{from: fromAll, to: everywhere, want: refused})},
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
			for _, to := range planOf(f).hostAddresses()[:2] {
				from := placeNamed(name)
				b := bystander{server: wildcard(f, nodeProcessPort), flow: flow{from: from,
					about: name + " to a process of the node",
					Flow: oracle.Flow{From: from.kind, Source: from.addr(f), Protocol: model.TCP,
						Destination: netip.AddrPortFrom(to, nodeProcessPort)}}}
				list = append(list, b)
			}
		}
	}
	return s.tryBystanders(ctx, list)
}

// open adds a connection that has to survive.
func (st *standing) open(s *session, f flow) error {
	c, err := s.n.open(f, time.Now().Add(s.patience.answer))
	if err != nil {
		return fmt.Errorf("flow: %v\nseen: %w\nwant: a connection", f, err)
	}
	st.list = append(st.list, standingConnection{connection: c})
	last := &st.list[len(st.list)-1]
	if last.first, err = c.ask(time.Now().Add(s.patience.answer)); err != nil {
		return fmt.Errorf("flow: %v\nseen: %w\nwant: an answer", f, err)
	}
	return nil
}
