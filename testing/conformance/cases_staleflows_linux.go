package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// staleFlowCases are about UDP flows, which have no end: those to an endpoint that no longer serves have to be cut
// (S40, S41).
func staleFlowCases() []testCase {
	needs := []Feature{StaleFlows}
	web := func(eps ...endpoint) service { return external(service{slot: 1, ports: udpOnly, endpoints: eps}) }
	local := web(at(localPod1)...)
	return []testCase{
		{name: "UDP flows move when their endpoint goes", rules: "S40", needs: needs,
			run: whileSending(local, flowsMove(web(at(remotePod1)...), isAt(remotePod1, serverPort)))},
		{name: "UDP flows move when their endpoint changes its port", rules: "S40", needs: needs,
			run: whileSending(local, flowsMove(web(endpoint{at: localPod1, target: serverPort2}),
				isAt(localPod1, serverPort2)))},
		{name: "UDP flows that began before the service are served", rules: "S40", needs: needs,
			run: serving(beside, earlyFlowsAreServed)},
		{name: "UDP flows to a service that has gone are cut", rules: "S41", needs: needs,
			run: whileSending(local, flowsOfDeletedServiceEnd)},
		{name: "UDP flows to endpoints that serve are left alone", rules: "S40", needs: needs,
			run: serving(web(fourEndpoints...), goodFlowsStay)},
	}
}

var udpOnly = []servicePort{{protocol: model.UDP}}

// beside is another service, so that the backend has applied something while there is no service under test.
var beside = external(service{name: "other", slot: 2, endpoints: at(remotePod2)})

// whileSending runs a case that begins with a service whose endpoint is local-1, and with UDP flows to it from
// everywhere to all its addresses.
func whileSending(svc service,
	run func(context.Context, *session, service, standing) error) func(context.Context, *session) error {
	return serving(svc, func(ctx context.Context, s *session, svc service) error {
		open, err := s.open(s.flows(svc, model.UDP, paths(fromAll, everywhere)))
		if err != nil {
			return err
		}
		defer open.close()
		if err := s.reach(open, isAt(localPod1, serverPort), "an answer from the endpoint"); err != nil {
			return err
		}
		return run(ctx, s, svc, open)
	})
}

// reach asks on each flow until one of the right servers answers, for as long as the session's patience lasts.
func (s *session) reach(flows standing, right func(netip.AddrPort) bool, wanted string) error {
	return each(flows, func(c *standingConnection) error {
		deadline := time.Now().Add(s.patience.Answer)
		for {
			a, err := c.Ask(deadline)
			if err == nil && right(a.Server) {
				return nil
			}
			if time.Now().Before(deadline) {
				continue
			}
			if err == nil {
				err = fmt.Errorf("an answer from %v", a.Server)
			}
			return fmt.Errorf("flow: %v, on a socket that has sent before\nseen: %w\nwant: %s", c.Flow, err, wanted)
		}
	})
}

func isAt(place string, port uint16) func(netip.AddrPort) bool {
	p := network.PlaceNamed(place)
	return func(a netip.AddrPort) bool { return a.Port() == port && (a.Addr() == p.V4 || a.Addr() == p.V6) }
}

// flowsMove changes the endpoints of the service, and checks that the flows follow.
func flowsMove(changed service,
	then func(netip.AddrPort) bool) func(context.Context, *session, service, standing) error {
	return func(ctx context.Context, s *session, _ service, open standing) error {
		if err := s.put(ctx, changed); err != nil {
			return err
		}
		return s.reach(open, then, "an answer from the new endpoint")
	}
}

func earlyFlowsAreServed(ctx context.Context, s *session, other service) error {
	svc := external(service{slot: 1, ports: udpOnly, endpoints: at(localPod1)})
	// A backend may have a blackhole route for addresses that no service has (S33), to which the node's own processes
	// cannot connect a socket. Such flows are left out.
	open, err := s.open(s.flows(svc, model.UDP, paths(fromAll, everywhere)), unix.EINVAL)
	if err != nil {
		return err
	}
	defer open.close()
	err = each(open, func(c *standingConnection) error {
		if a, err := c.Ask(time.Now().Add(s.patience.Quiet)); err == nil {
			return fmt.Errorf("flow: %v\nseen: an answer from %v\nwant: none before there is such a service", c.Flow,
				a.Server)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.put(ctx, other, svc); err != nil {
		return err
	}
	return s.reach(open, isAt(localPod1, serverPort), "an answer from the endpoint, now that there is one")
}

func flowsOfDeletedServiceEnd(ctx context.Context, s *session, _ service, open standing) error {
	if err := s.put(ctx, beside); err != nil {
		return err
	}
	return each(open, func(c *standingConnection) error {
		var a network.Answer
		// A backend may cut flows after Sync has returned; then the first answers still arrive.
		for deadline := time.Now().Add(s.patience.Answer); time.Now().Before(deadline); {
			var err error
			if a, err = c.Ask(time.Now().Add(s.patience.Quiet)); err != nil {
				return nil //nolint:nilerr // no answer is what is wanted
			}
		}
		return fmt.Errorf("flow: %v, on a socket that has sent before\nseen: an answer from %v\nwant: none", c.Flow,
			a.Server)
	})
}

func goodFlowsStay(ctx context.Context, s *session, svc service) error {
	open, err := s.stand(s.flows(svc, model.UDP, paths(fromAll, everywhere)))
	if err != nil {
		return err
	}
	defer open.close()
	// local-2 goes; remote-2 still serves while it terminates, though nothing new is sent there.
	svc.endpoints = append(at(localPod1, remotePod1), inPhase(terminating, remotePod2)...)
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	gone := isAt(localPod2, serverPort)
	serve := slices.DeleteFunc(slices.Clone(open), func(c *standingConnection) bool { return gone(c.first.Server) })
	if err := serve.check(s.patience); err != nil {
		return fmt.Errorf("to an endpoint that still serves:\n\n%w", err)
	}
	return nil
}
