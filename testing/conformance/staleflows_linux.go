package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// staleFlowCases are about UDP flows, which have no end: those to an endpoint that no longer serves have to be cut
// (S40, S41).
func staleFlowCases() []testCase {
	needs := []Feature{StaleFlows}
	return []testCase{
		{name: "UDP flows move when their endpoint goes", rules: "S40", needs: needs, run: flowsMove},
		{name: "UDP flows move when their endpoint changes its port", rules: "S40", needs: needs, run: flowsFollowPort},
		{name: "UDP flows that began before the service are served", rules: "S40", needs: needs,
			run: earlyFlowsAreServed},
		{name: "UDP flows to a service that has gone are cut", rules: "S41", needs: needs,
			run: flowsOfDeletedServiceEnd},
		{name: "UDP flows to endpoints that serve are left alone", rules: "S40", needs: needs, run: goodFlowsStay},
	}
}

var udpOnly = []servicePort{{protocol: model.UDP}}

// udpFlows opens a UDP flow from everywhere to all addresses of a service, and sends nothing yet. While the service
// does not exist a backend may have a blackhole route for its addresses (S33), to which the node's own processes cannot
// connect a socket. Such flows are left out.
func (s *session) udpFlows(svc service) ([]*connection, func(), error) {
	svc = svc.withDefaults(0)
	name := model.ServiceName{Namespace: "default", Name: svc.name}
	var flows []*connection
	closeAll := func() {
		for _, c := range flows {
			c.close()
		}
	}
	for _, f := range s.env.Families {
		for _, from := range fromAll {
			for _, to := range everywhere {
				place := placeNamed(from)
				fl := flow{
					Flow: oracle.Flow{From: place.kind, Source: place.addr(f), Destination: to.resolve(svc, 0, f),
						Protocol: model.UDP},
					from: place, about: fmt.Sprintf("%s to the %v of %s", from, to, svc.name),
				}
				c, err := s.n.open(fl, time.Now().Add(s.patience.answer))
				if isErrno(err, unix.EINVAL) && s.told.services[name] == nil {
					continue
				}
				if err != nil {
					closeAll()
					return nil, nil, fmt.Errorf("flow: %v\nseen: %w\nwant: a socket that can send there", fl, err)
				}
				flows = append(flows, c)
			}
		}
	}
	return flows, closeAll, nil
}

// onEach calls f for all connections concurrently. f returns what is wrong, or "".
func onEach(flows []*connection, f func(*connection) string) error {
	wrong := make([]string, len(flows))
	var wg sync.WaitGroup
	for i, c := range flows {
		wg.Go(func() { wrong[i] = f(c) })
	}
	wg.Wait()
	var failed failures
	for _, text := range wrong {
		if text != "" {
			failed.add(text)
		}
	}
	return failed.err()
}

// reach asks on each flow until one of the right servers answers, for as long as the session's patience lasts.
func (s *session) reach(flows []*connection, right func(netip.AddrPort) bool, wanted string) error {
	return onEach(flows, func(c *connection) string {
		deadline := time.Now().Add(s.patience.answer)
		for {
			a, err := c.ask(deadline)
			if err == nil && right(a.server) {
				return ""
			}
			if time.Now().Before(deadline) {
				continue
			}
			what := fmt.Sprintf("an answer from %v", a.server)
			if err != nil {
				what = err.Error()
			}
			return fmt.Sprintf("flow: %v, on a socket that has sent before\nseen: %s\nwant: %s", c.flow, what, wanted)
		}
	})
}

func isAt(place string, port uint16) func(netip.AddrPort) bool {
	p := placeNamed(place)
	return func(a netip.AddrPort) bool { return a.Port() == port && (a.Addr() == p.v4 || a.Addr() == p.v6) }
}

func flowsMove(ctx context.Context, s *session) error {
	return s.moved(ctx, at(localPod1), at(remotePod1), isAt(localPod1, serverPort), isAt(remotePod1, serverPort))
}

func flowsFollowPort(ctx context.Context, s *session) error {
	return s.moved(ctx, at(localPod1), []endpoint{{at: localPod1, target: serverPort2}}, isAt(localPod1, serverPort),
		isAt(localPod1, serverPort2))
}

// moved changes the endpoints of a service, and checks that the flows follow.
func (s *session) moved(ctx context.Context, from, to []endpoint, atFirst, then func(netip.AddrPort) bool) error {
	svc := external(service{slot: 1, ports: udpOnly, endpoints: from})
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	flows, closeAll, err := s.udpFlows(svc)
	if err != nil {
		return err
	}
	defer closeAll()
	if err := s.reach(flows, atFirst, "an answer from the endpoint"); err != nil {
		return err
	}
	svc.endpoints = to
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	return s.reach(flows, then, "an answer from the new endpoint")
}

func earlyFlowsAreServed(ctx context.Context, s *session) error {
	svc := external(service{slot: 1, ports: udpOnly, endpoints: at(localPod1)})
	// Another service, so that the backend has applied something when the flows begin.
	other := external(service{name: "other", slot: 2, endpoints: at(remotePod2)})
	if err := s.put(ctx, other); err != nil {
		return err
	}
	flows, closeAll, err := s.udpFlows(svc)
	if err != nil {
		return err
	}
	defer closeAll()
	err = onEach(flows, func(c *connection) string {
		if a, err := c.ask(time.Now().Add(s.patience.quiet)); err == nil {
			return fmt.Sprintf("flow: %v\nseen: an answer from %v\nwant: none before there is such a service", c.flow,
				a.server)
		}
		return ""
	})
	if err != nil {
		return err
	}
	if err := s.put(ctx, other, svc); err != nil {
		return err
	}
	return s.reach(flows, isAt(localPod1, serverPort), "an answer from the endpoint, now that there is one")
}

func flowsOfDeletedServiceEnd(ctx context.Context, s *session) error {
	svc := external(service{slot: 1, ports: udpOnly, endpoints: at(localPod1)})
	other := external(service{name: "other", slot: 2, endpoints: at(remotePod2)})
	if err := s.put(ctx, svc, other); err != nil {
		return err
	}
	flows, closeAll, err := s.udpFlows(svc)
	if err != nil {
		return err
	}
	defer closeAll()
	if err := s.reach(flows, isAt(localPod1, serverPort), "an answer from the endpoint"); err != nil {
		return err
	}
	if err := s.put(ctx, other); err != nil {
		return err
	}
	return onEach(flows, func(c *connection) string {
		var a answer
		// A backend may cut flows after Sync has returned; then the first answers still arrive.
		for deadline := time.Now().Add(s.patience.answer); time.Now().Before(deadline); {
			var err error
			if a, err = c.ask(time.Now().Add(s.patience.quiet)); err != nil {
				return ""
			}
		}
		return fmt.Sprintf("flow: %v, on a socket that has sent before\nseen: an answer from %v\nwant: none, the service has gone", c.flow, a.server)
	})
}

func goodFlowsStay(ctx context.Context, s *session) error {
	svc := external(service{slot: 1, ports: udpOnly, endpoints: fourEndpoints})
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	flows, closeAll, err := s.udpFlows(svc)
	if err != nil {
		return err
	}
	defer closeAll()
	homes := map[*connection]answer{}
	for _, c := range flows {
		if homes[c], err = c.ask(time.Now().Add(s.patience.answer)); err != nil {
			return fmt.Errorf("flow: %v\nseen: %w\nwant: an answer", c.flow, err)
		}
	}
	// local-2 goes; remote-2 still serves while it terminates, though nothing new is sent there.
	svc.endpoints = append(at(localPod1, remotePod1), inPhase(terminating, remotePod2)...)
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	gone := isAt(localPod2, serverPort)
	var failed failures
	for _, c := range flows {
		home := homes[c]
		if gone(home.server) {
			continue
		}
		if a, err := c.ask(time.Now().Add(s.patience.answer)); err != nil || a.server != home.server ||
			a.client != home.client {
			failed.add(fmt.Sprintf(
				"flow: %v, on a socket that has sent before\nseen: an answer from %v to %v, error %v\nwant: %v to %v, as before: that endpoint still serves",
				c.flow, a.server, a.client, err, home.server, home.client))
		}
	}
	return failed.err()
}
