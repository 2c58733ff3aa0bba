package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// affinityCases are about session affinity (S32).
func affinityCases() []testCase {
	needs := []Feature{SessionAffinity}
	return []testCase{
		{name: "a client stays with its endpoint", rules: "S32", needs: needs, run: clientsStay},
		{name: "a client stays with its endpoint, at all addresses of the port", rules: "S32",
			needs: []Feature{SessionAffinity, SharedAffinity}, run: clientsStayEverywhere},
		{name: "session affinity spreads the clients over all endpoints", rules: "S32", needs: needs,
			run: clientsSpread},
		{name: "session affinity ends with the endpoint", rules: "S32", needs: needs, run: affinityEndsWithEndpoint},
		{name: "session affinity survives changes to other endpoints", rules: "S32", needs: needs,
			run: affinitySurvivesOthers},
		{name: "session affinity expires", rules: "S32", needs: append(needs, AffinityTimeout), run: affinityExpires},
	}
}

func sticky(timeout time.Duration, eps []endpoint) service {
	return external(service{affinity: timeout, endpoints: eps})
}

var fourEndpoints = at(localPod1, localPod2, remotePod1, remotePod2)

// clientAddr is the n-th address of the client outside, for cases that need many clients.
func clientAddr(f model.Family, n int) netip.Addr { return nth(planOf(f).clients, 20+n) }

// visitor is a client of a service port, with the endpoint that answered it.
type visitor struct {
	from   place
	source netip.Addr
	family model.Family
	port   int // place in the service's list
	home   netip.AddrPort
}

func (v visitor) String() string { return fmt.Sprintf("%s %v", v.from.name, v.source) }

// visitors returns n clients outside for each family and port of a service.
func (s *session) visitors(svc service, n int) []visitor {
	var list []visitor
	for _, f := range s.env.Families {
		for port := range svc.withDefaults(0).ports {
			for i := range n {
				list = append(list, visitor{from: placeNamed(client), source: clientAddr(f, i), family: f, port: port})
			}
		}
	}
	return list
}

// visit makes one connection of each visitor, and returns the endpoints that answered. It fails if an answer is not
// what the oracle says.
func (s *session) visit(ctx context.Context, svc service, visitors []visitor,
	to destination) ([]netip.AddrPort, error) {
	o, err := s.told.oracle(s.setup, s.env.Families)
	if err != nil {
		return nil, err
	}
	svc = svc.withDefaults(0)
	var flows []attempt
	var expected []expectation
	for _, v := range visitors {
		f := flow{from: v.from, about: fmt.Sprintf("%s to the %v of %s", v.from.name, to, svc.name), Flow: oracle.Flow{
			From: v.from.kind, Source: v.source, Destination: to.resolve(svc, v.port, v.family),
			Protocol: svc.ports[v.port].protocol}}
		x, err := s.expect(o, f, s.told)
		if err != nil {
			return nil, err
		}
		flows, expected = append(flows, attempt{flow: f}), append(expected, x)
	}
	var failed failures
	var answered []netip.AddrPort
	for i, seen := range s.n.tryAll(ctx, flows, s.patience) {
		answered = append(answered, seen.Endpoint)
		if err := expected[i].check(o, seen); err != nil {
			failed.add(err.Error())
		}
	}
	return answered, failed.err()
}

// settle makes the first connection of each visitor, which determines its endpoint.
func (s *session) settle(ctx context.Context, svc service, visitors []visitor) error {
	return s.settleAt(ctx, svc, visitors, toClusterIP)
}

func (s *session) settleAt(ctx context.Context, svc service, visitors []visitor, to destination) error {
	homes, err := s.visit(ctx, svc, visitors, to)
	for i := range visitors {
		visitors[i].home = homes[i]
	}
	return err
}

// revisit makes another connection of each visitor, which must reach the same endpoint. All connections of a round are
// made at the same time, one per visitor.
func (s *session) revisit(ctx context.Context, svc service, visitors []visitor, to destination) error {
	answered, err := s.visit(ctx, svc, visitors, to)
	if err != nil {
		return err
	}
	var failed failures
	for i, v := range visitors {
		if answered[i] != v.home {
			failed.add(fmt.Sprintf(
				"flow: %v to the %v\nseen: delivered to %v\nwant: deliver to %v, where the client was before (S32)",
				v, to, answered[i], v.home))
		}
	}
	return failed.err()
}

// clientsStay lets clients connect to one address after the other.
func clientsStay(ctx context.Context, s *session) error {
	svc := sticky(time.Hour, fourEndpoints)
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	visitors := s.visitorsFromEverywhere(svc)
	for _, to := range everywhere {
		if err := s.settleAt(ctx, svc, visitors, to); err != nil {
			return err
		}
		for range 3 {
			if err := s.revisit(ctx, svc, visitors, to); err != nil {
				return err
			}
		}
	}
	return nil
}

func clientsStayEverywhere(ctx context.Context, s *session) error {
	svc := sticky(time.Hour, fourEndpoints)
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	visitors := s.visitorsFromEverywhere(svc)
	if err := s.settle(ctx, svc, visitors); err != nil {
		return err
	}
	for range 6 {
		for _, to := range everywhere {
			if err := s.revisit(ctx, svc, visitors, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// visitorsFromEverywhere returns clients outside, pods, and the node itself.
func (s *session) visitorsFromEverywhere(svc service) []visitor {
	visitors := s.visitors(svc, 4)
	for _, f := range s.env.Families {
		for port := range svc.withDefaults(0).ports {
			for _, from := range []string{localPod3, theNode, remotePod3} {
				p := placeNamed(from)
				visitors = append(visitors, visitor{from: p, source: p.addr(f), family: f, port: port})
			}
		}
	}
	return visitors
}

func clientsSpread(ctx context.Context, s *session) error {
	svc := sticky(time.Hour, fourEndpoints)
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	visitors := s.visitors(svc, attempts(len(fourEndpoints)))
	if err := s.settle(ctx, svc, visitors); err != nil {
		return err
	}
	type group struct {
		family model.Family
		port   int
	}
	homes := map[group]map[netip.AddrPort]int{}
	for _, v := range visitors {
		g := group{v.family, v.port}
		if homes[g] == nil {
			homes[g] = map[netip.AddrPort]int{}
		}
		homes[g][v.home]++
	}
	for g, count := range homes {
		if len(count) < len(fourEndpoints) {
			return fmt.Errorf("%v, port %d of the service: %d clients reached %d of %d endpoints only: %v",
				g.family, g.port, len(visitors)/len(homes), len(count), len(fourEndpoints), count)
		}
	}
	return nil
}

func affinityEndsWithEndpoint(ctx context.Context, s *session) error {
	svc := sticky(time.Hour, fourEndpoints)
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	visitors := s.visitors(svc, 8)
	if err := s.settle(ctx, svc, visitors); err != nil {
		return err
	}
	for _, gone := range []endpoint{{at: localPod1, phase: unready}, {at: remotePod1, phase: terminating}} {
		left := slices.Clone(svc.endpoints)
		i := slices.IndexFunc(left, func(e endpoint) bool { return e.at == gone.at })
		left[i] = gone
		svc.endpoints = left
		if err := s.put(ctx, svc); err != nil {
			return err
		}
		// Existing endpoints answer all visitors, and those that lost theirs stay with the new one.
		if err := s.settle(ctx, svc, visitors); err != nil {
			return fmt.Errorf("after %s had become unusable: %w", gone.at, err)
		}
		again := []destination{toClusterIP}
		if !s.factory.lacks(SharedAffinity) {
			again = append(again, toVIP)
		}
		for _, to := range again {
			if err := s.revisit(ctx, svc, visitors, to); err != nil {
				return fmt.Errorf("after %s had become unusable: %w", gone.at, err)
			}
		}
	}
	return nil
}

func affinitySurvivesOthers(ctx context.Context, s *session) error {
	svc := sticky(time.Hour, fourEndpoints)
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	visitors := s.visitors(svc, 8)
	if err := s.settle(ctx, svc, visitors); err != nil {
		return err
	}
	removed := placeNamed(remotePod2)
	visitors = slices.DeleteFunc(visitors, func(v visitor) bool { return v.home.Addr() == removed.addr(v.family) })
	for _, change := range []struct {
		what string
		svc  service
	}{
		{"another endpoint came", sticky(time.Hour, append(at(remotePod3), fourEndpoints...))},
		{"another endpoint went", sticky(time.Hour, at(localPod1, localPod2, remotePod1))},
	} {
		if err := s.put(ctx, change.svc); err != nil {
			return err
		}
		if err := s.revisit(ctx, svc, visitors, toClusterIP); err != nil {
			return fmt.Errorf("after %s: %w", change.what, err)
		}
	}
	return nil
}

// affinityExpires waits for the service's timeout: there is no other way to know that it has passed.
func affinityExpires(ctx context.Context, s *session) error {
	const timeout = 2 * time.Second
	svc := sticky(timeout, fourEndpoints)
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	visitors := s.visitors(svc, 10)
	// On a machine that stands still for a while the timeout may pass in between; then try again.
	for attempt := 1; ; attempt++ {
		start := time.Now()
		if err := s.settle(ctx, svc, visitors); err != nil {
			return err
		}
		err := s.revisit(ctx, svc, visitors, toClusterIP)
		if err == nil {
			break
		}
		if time.Since(start) < timeout/2 || attempt == 5 {
			return fmt.Errorf("within the timeout: %w", err)
		}
	}
	// Timers in the kernel are coarse.
	select {
	case <-time.After(timeout + 1500*time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	answered, err := s.visit(ctx, svc, visitors, toClusterIP)
	if err != nil {
		return err
	}
	for i, v := range visitors {
		if answered[i] != v.home {
			return nil
		}
	}
	return errors.New("all of the clients are still sent to the endpoints where they were before the timeout")
}
