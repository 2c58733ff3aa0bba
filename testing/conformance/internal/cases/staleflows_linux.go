package cases

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

// staleFlowCases cover UDP flows, which have no end: those to an endpoint that stops serving have to be deleted (S40,
// S41).
func staleFlowCases() []Case {
	needs := []backend.Feature{backend.StaleFlows}
	web := func(eps ...endpoint) service {
		return external(service{Slot: 1, Ports: udpOnly, Endpoints: eps})
	}
	local := web(cluster.At(localPod1)...)
	restricted := local
	restricted.Ranges = []sourceRange{{Host: client}}
	return []Case{
		{Name: "UDP flows move when their endpoint goes", Rules: "S40", Needs: needs,
			run: whileSending(local, flowsMove(web(cluster.At(remotePod1)...), isAt(remotePod1, serverPort)))},
		{Name: "UDP flows move when their endpoint changes its port", Rules: "S40", Needs: needs,
			run: whileSending(local, flowsMove(web(endpoint{At: localPod1, Target: serverPort2}),
				isAt(localPod1, serverPort2)))},
		{Name: "UDP flows that began before the service are served", Rules: "S40", Needs: needs,
			run: serving(beside, earlyFlowsAreServed)},
		{Name: serviceAddressFlowsCase, Rules: "S40", Needs: needs, run: earlyFlowsToAddressesOfTheService},
		{Name: nodeAddressFlowsCase, Rules: "S40", Needs: needs,
			Setup: setup{NodePorts: cluster.OnAllAddresses}, run: serving(local, earlyFlowsToAddressesOfTheNode)},
		{Name: "UDP flows that source ranges dropped are served when these let them in", Rules: "S26, S40",
			Needs: append([]backend.Feature{backend.SourceRanges}, needs...), run: serving(restricted, droppedFlowsAreServed)},
		{Name: "UDP flows to a service that has gone are cut", Rules: "S41", Needs: needs,
			run: whileSending(local, flowsOfDeletedServiceEnd)},
		{Name: "UDP flows to endpoints that serve are left alone", Rules: "S40", Needs: needs,
			run: serving(web(fourEndpoints...), goodFlowsStay)},
	}
}

var udpOnly = []servicePort{{Protocol: model.UDP}}

// beside is another service, which keeps the state from being empty while the service under test does not exist.
var beside = external(service{Name: "other", Slot: 2, Endpoints: cluster.At(remotePod2)})

// whileSending runs a case with a service whose only endpoint is local-1, and with UDP flows from every place to all of
// its addresses.
func whileSending(svc service,
	run func(context.Context, *bed, service, standing) error) func(context.Context, *bed) error {
	return serving(svc, func(ctx context.Context, b *bed, svc service) error {
		open, err := b.open(b.flows(svc, model.UDP, paths(fromAll, everywhere)))
		if err != nil {
			return err
		}
		defer open.close()
		if err := b.reach(open, isAt(localPod1, serverPort), "an answer from the endpoint"); err != nil {
			return err
		}
		return run(ctx, b, svc, open)
	})
}

// flowTimeout is how long it may take until stale flows are deleted. A backend has 20 s more than the answer timeout
// after Sync: package conntrack, too, pauses for up to ten seconds after a pass that took long, as on a busy machine.
// Of a program only the rules are known to be applied: it may delete flows later, at intervals of its own.
func (b *bed) flowTimeout() time.Duration {
	if b.Program != nil {
		return b.Timeouts.Answer + b.Program.Figures.Settle()
	}
	return b.Timeouts.Answer + 20*time.Second
}

// reach sends requests on each flow until a right server answers, at most for the flow timeout.
func (b *bed) reach(flows standing, right func(netip.AddrPort) bool, wanted string) error {
	return testbed.Each(flows, func(c *standingConnection) error {
		deadline := time.Now().Add(b.flowTimeout())
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

func isAt(name string, port uint16) func(netip.AddrPort) bool {
	host := network.HostNamed(name)
	return func(a netip.AddrPort) bool { return a.Port() == port && (a.Addr() == host.V4 || a.Addr() == host.V6) }
}

// flowsMove changes the service's endpoints and checks that the flows follow.
func flowsMove(changed service,
	then func(netip.AddrPort) bool) func(context.Context, *bed, service, standing) error {
	return func(ctx context.Context, b *bed, _ service, open standing) error {
		if err := b.Put(ctx, changed); err != nil {
			return err
		}
		return b.reach(open, then, "an answer from the new endpoint")
	}
}

func earlyFlowsAreServed(ctx context.Context, b *bed, other service) error {
	svc := external(service{Slot: 1, Ports: udpOnly, Endpoints: cluster.At(localPod1)})
	flows := b.flows(svc, model.UDP, paths(fromAll, everywhere))
	return b.earlyFlows(flows, func() error { return b.Put(ctx, other, svc) })
}

// earlyFlowsToAddressesOfTheService has one service get external addresses, and the VIP of another one become the
// node's to serve, as its ipMode changes. The endpoints stay.
func earlyFlowsToAddressesOfTheService(ctx context.Context, b *bed) error {
	web := service{Slot: 1, Ports: udpOnly, Endpoints: cluster.At(localPod1)}
	proxied := service{Name: "proxied", Slot: 2, VIP: true, VIPByProxy: true, Ports: udpOnly,
		Endpoints: cluster.At(localPod1)}
	if err := b.Put(ctx, web, proxied); err != nil {
		return err
	}
	flows := append(b.flows(web, model.UDP, paths(fromAll, externalDestinations)),
		b.flows(proxied, model.UDP, paths(fromAll, []destination{toVIP}))...)
	proxied.VIPByProxy = false
	return b.earlyFlows(flows, func() error { return b.Put(ctx, external(web), proxied) })
}

// earlyAddr is an address that the node gains while clients already send to a node port there.
func earlyAddr(f model.Family) netip.Addr { return network.Nth(cluster.ExternalIPs(f), 231) }

func earlyFlowsToAddressesOfTheNode(ctx context.Context, b *bed, svc service) error {
	const link = "kpl-outside"
	defer func() { _ = b.Network.TakeFromNode(link, earlyAddr) }()
	var flows []network.Attempt
	for _, f := range b.Env.Families {
		to := netip.AddrPortFrom(earlyAddr(f), svc.WithDefaults(0).NodePortOf(0))
		for _, name := range []string{localPod3, theNode, remotePod3, client} {
			flows = append(flows,
				network.HostNamed(name).FlowTo(to, model.UDP, "the node port on an address that comes later"))
		}
	}
	return b.earlyFlows(flows, func() error {
		if err := b.Network.GiveToNode(link, earlyAddr); err != nil {
			return err
		}
		return b.Resync(ctx)
	})
}

// droppedFlowsAreServed lifts the source ranges. A packet that is dropped leaves no entry in connection tracking: so
// nothing has to be deleted, if the backend drops it.
func droppedFlowsAreServed(ctx context.Context, b *bed, svc service) error {
	flows := b.flows(svc, model.UDP, paths([]string{localPod3, remotePod3, client2}, []destination{toVIP}))
	svc.Ranges = nil
	return b.earlyFlows(flows, func() error { return b.Put(ctx, svc) })
}

// earlyFlows sends on UDP flows that nothing serves, makes a change, and checks that they are served then.
func (b *bed) earlyFlows(flows []network.Attempt, change func() error) error {
	// A backend may have blackhole routes for unused addresses (S33), to which the node's own processes cannot connect a
	// socket. Such flows are left out.
	open, err := b.open(flows, unix.EINVAL)
	if err != nil {
		return err
	}
	defer open.close()
	err = testbed.Each(open, func(c *standingConnection) error {
		if a, err := c.Ask(time.Now().Add(b.Timeouts.Quiet)); err == nil {
			return fmt.Errorf("flow: %v\nseen: an answer from %v\nwant: none, as nothing is served there yet", c.Flow,
				a.Server)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	return b.reach(open, isAt(localPod1, serverPort), "an answer from the endpoint, now that this is served")
}

func flowsOfDeletedServiceEnd(ctx context.Context, b *bed, _ service, open standing) error {
	if err := b.Put(ctx, beside); err != nil {
		return err
	}
	return testbed.Each(open, func(c *standingConnection) error {
		var a network.Answer
		// A backend may delete flows after Sync has returned: earlier answers may still arrive.
		for deadline := time.Now().Add(b.flowTimeout()); time.Now().Before(deadline); {
			var err error
			if a, err = c.Ask(time.Now().Add(b.Timeouts.Quiet)); err != nil {
				return nil //nolint:nilerr // no answer is the expected result
			}
		}
		return fmt.Errorf("flow: %v, on a socket that has sent before\nseen: an answer from %v\nwant: none", c.Flow,
			a.Server)
	})
}

func goodFlowsStay(ctx context.Context, b *bed, svc service) error {
	open, err := b.stand(b.flows(svc, model.UDP, paths(fromAll, everywhere)))
	if err != nil {
		return err
	}
	defer open.close()
	// local-2 is removed; remote-2 terminates: it still serves, but gets no new flows.
	svc.Endpoints = append(cluster.At(localPod1, remotePod1), cluster.InPhase(cluster.Terminating, remotePod2)...)
	if err := b.Put(ctx, svc); err != nil {
		return err
	}
	gone := isAt(localPod2, serverPort)
	serve := slices.DeleteFunc(slices.Clone(open), func(c *standingConnection) bool { return gone(c.first.Server) })
	if err := serve.check(b.Timeouts); err != nil {
		return fmt.Errorf("to an endpoint that still serves:\n\n%w", err)
	}
	return nil
}
