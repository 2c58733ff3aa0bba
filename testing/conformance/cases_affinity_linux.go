package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// affinityCases are about session affinity (S32).
func affinityCases() []testCase {
	affine := sticky(time.Hour, fourEndpoints)
	return []testCase{
		affinityCase("a client stays with its endpoint", affine, clientsStay),
		affinityCase(sharedAffinityCase, affine, clientsStayEverywhere),
		affinityCase("session affinity spreads the clients over all endpoints", affine, clientsSpread),
		affinityCase("session affinity ends with the endpoint", affine, affinityEndsWithEndpoint),
		affinityCase("session affinity survives changes to other endpoints", affine, affinitySurvivesOthers),
		affinityCase("session affinity expires", sticky(shortAffinity, fourEndpoints), affinityExpires),
	}
}

func affinityCase(name string, svc service, run func(context.Context, *session, service) error) testCase {
	return testCase{name: name, rules: "S32", needs: []Feature{SessionAffinity}, run: serving(svc, run)}
}

// shortAffinity is the timeout that is waited for.
const shortAffinity = 2 * time.Second

func sticky(timeout time.Duration, eps []endpoint) service {
	return external(service{affinity: timeout, endpoints: eps})
}

var fourEndpoints = at(localPod1, localPod2, remotePod1, remotePod2)

// clientAddr is the n-th address of the client outside, for cases that need many clients.
func clientAddr(f model.Family, n int) netip.Addr {
	return network.Nth(network.PlanOf(f).Clients, 20+n)
}

// visitor is a client of a service port, with the endpoint that answered it.
type visitor struct {
	from   network.Place
	family model.Family
	port   int // place in the service's list
	home   netip.AddrPort
}

// visitors returns clients for each family and port of a service: n outside, and some places.
func (s *session) visitors(svc service, n int, names ...string) []visitor {
	var from []network.Place
	for i := range n {
		p := network.PlaceNamed(client)
		p.V4, p.V6 = clientAddr(model.IPv4, i), clientAddr(model.IPv6, i)
		from = append(from, p)
	}
	for _, name := range names {
		from = append(from, network.PlaceNamed(name))
	}
	var list []visitor
	for _, f := range s.env.Families {
		for port := range svc.withDefaults(0).ports {
			for _, p := range from {
				list = append(list, visitor{from: p, family: f, port: port})
			}
		}
	}
	return list
}

// visit makes one connection of each visitor, all at the same time, and returns the endpoints that answered. It fails
// if an answer is not what the oracle says.
func (s *session) visit(ctx context.Context, svc service, visitors []visitor,
	to destination) ([]netip.AddrPort, error) {
	var flows []network.Attempt
	for _, v := range visitors {
		flows = append(flows, svc.withDefaults(0).flow(v.from, to, v.port, v.family))
	}
	expected, err := s.expect(flows)
	if err != nil {
		return nil, err
	}
	var failed failures
	var answered []netip.AddrPort
	for i, seen := range s.tryAll(ctx, flows) {
		answered = append(answered, seen.Endpoint)
		failed.add(expected[i].check(seen))
	}
	return answered, failed.err()
}

// settle makes the first connection of each visitor, which determines its endpoint.
func (s *session) settle(ctx context.Context, svc service, visitors []visitor, to destination) error {
	homes, err := s.visit(ctx, svc, visitors, to)
	for i, home := range homes {
		visitors[i].home = home
	}
	return err
}

// revisit makes another connection of each visitor, which must reach the same endpoint.
func (s *session) revisit(ctx context.Context, svc service, visitors []visitor, to destination) error {
	answered, err := s.visit(ctx, svc, visitors, to)
	if err != nil {
		return err
	}
	var failed failures
	for i, v := range visitors {
		if answered[i] != v.home {
			failed.add(fmt.Errorf(
				"flow: %s %v to the %v\nseen: delivered to %v\nwant: deliver to %v, where the client was before (S32)",
				v.from.Name, v.from.Addr(v.family), to, answered[i], v.home))
		}
	}
	return failed.err()
}

// clientsStay lets clients connect to one address after the other.
func clientsStay(ctx context.Context, s *session, svc service) error {
	visitors := s.visitors(svc, 4, localPod3, theNode, remotePod3)
	for _, to := range everywhere {
		if err := s.settle(ctx, svc, visitors, to); err != nil {
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

func clientsStayEverywhere(ctx context.Context, s *session, svc service) error {
	visitors := s.visitors(svc, 4, localPod3, theNode, remotePod3)
	if err := s.settle(ctx, svc, visitors, toClusterIP); err != nil {
		return err
	}
	for range 6 {
		for _, to := range everywhere {
			if err := s.revisit(ctx, svc, visitors, to); err != nil {
				return err
			}
		}
	}
	// Those that lose theirs share a new one.
	svc.endpoints = withPhase(svc.endpoints, localPod1, unready)
	if err := s.put(ctx, svc); err != nil {
		return err
	}
	err := s.settle(ctx, svc, visitors, toClusterIP)
	if err == nil {
		err = s.revisit(ctx, svc, visitors, toVIP)
	}
	if err != nil {
		return fmt.Errorf("after %s had become unusable: %w", localPod1, err)
	}
	return nil
}

// withPhase returns endpoints of which one is in another phase.
func withPhase(list []endpoint, at string, p phase) []endpoint {
	list = slices.Clone(list)
	for i := range list {
		if list[i].at == at {
			list[i].phase = p
		}
	}
	return list
}

func clientsSpread(ctx context.Context, s *session, svc service) error {
	visitors := s.visitors(svc, attempts(len(fourEndpoints)))
	if err := s.settle(ctx, svc, visitors, toClusterIP); err != nil {
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

func affinityEndsWithEndpoint(ctx context.Context, s *session, svc service) error {
	visitors := s.visitors(svc, 8)
	if err := s.settle(ctx, svc, visitors, toClusterIP); err != nil {
		return err
	}
	for _, gone := range []endpoint{{at: localPod1, phase: unready}, {at: remotePod1, phase: terminating}} {
		svc.endpoints = withPhase(svc.endpoints, gone.at, gone.phase)
		if err := s.put(ctx, svc); err != nil {
			return err
		}
		// Existing endpoints answer all visitors, and those that lost theirs stay with the new one.
		err := s.settle(ctx, svc, visitors, toClusterIP)
		if err == nil {
			err = s.revisit(ctx, svc, visitors, toClusterIP)
		}
		if err != nil {
			return fmt.Errorf("after %s had become unusable: %w", gone.at, err)
		}
	}
	return nil
}

func affinitySurvivesOthers(ctx context.Context, s *session, svc service) error {
	visitors := s.visitors(svc, 8)
	if err := s.settle(ctx, svc, visitors, toClusterIP); err != nil {
		return err
	}
	removed := network.PlaceNamed(remotePod2)
	visitors = slices.DeleteFunc(visitors, func(v visitor) bool { return v.home.Addr() == removed.Addr(v.family) })
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
func affinityExpires(ctx context.Context, s *session, svc service) error {
	visitors := s.visitors(svc, 10)
	// On a machine that stands still for a while the timeout may pass in between; then try again.
	for began := time.Now(); ; {
		start := time.Now()
		if err := s.settle(ctx, svc, visitors, toClusterIP); err != nil {
			return err
		}
		err := s.revisit(ctx, svc, visitors, toClusterIP)
		if err == nil {
			break
		}
		if time.Since(start) < shortAffinity/2 || time.Since(began) > time.Minute {
			return fmt.Errorf("within the timeout: %w", err)
		}
	}
	// Timers in the kernel are coarse.
	select {
	case <-time.After(shortAffinity + 1500*time.Millisecond):
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
