package cases

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

// affinityCases cover session affinity (S32).
func affinityCases() []Case {
	affine := sticky(time.Hour, fourEndpoints)
	return []Case{
		affinityCase("a client stays with its endpoint", affine, clientsStay),
		affinityCase(backend.SharedAffinityCase, affine, clientsStayEverywhere),
		affinityCase("session affinity spreads the clients over all endpoints", affine, clientsSpread),
		affinityCase("session affinity ends with the endpoint", affine, affinityEndsWithEndpoint),
		affinityCase("session affinity survives changes to other endpoints", affine, affinitySurvivesOthers),
		affinityCase("session affinity expires", sticky(shortAffinity, fourEndpoints), affinityExpires),
		affinityCase(loweredTimeoutCase, affine, loweredTimeoutFreesClients),
	}
}

func affinityCase(name string, svc service, run func(context.Context, *bed, service) error) Case {
	return Case{Name: name, Rules: "S32", Needs: []backend.Feature{backend.SessionAffinity}, run: serving(svc, run)}
}

// shortAffinity is the affinity timeout of the cases that wait for it to expire.
const shortAffinity = 2 * time.Second

func sticky(timeout time.Duration, eps []endpoint) service {
	return external(service{Affinity: timeout, Endpoints: eps})
}

var fourEndpoints = cluster.At(localPod1, localPod2, remotePod1, remotePod2)

// clientAddr returns the n-th address of the external client.
func clientAddr(f model.Family, n int) netip.Addr {
	return network.Nth(network.PlanOf(f).Clients, 20+n)
}

// visitor is a client of a service port. endpoint is the one that answered it.
type visitor struct {
	from   network.Host
	family model.Family
	port   int // index in the service's list
	home   netip.AddrPort
}

// visitors returns n external clients and the named places, for each family and port of a service.
func (b *bed) visitors(svc service, n int, names ...string) []visitor {
	var from []network.Host
	for i := range n {
		p := network.HostNamed(client)
		p.V4, p.V6 = clientAddr(model.IPv4, i), clientAddr(model.IPv6, i)
		from = append(from, p)
	}
	for _, name := range names {
		from = append(from, network.HostNamed(name))
	}
	var list []visitor
	for _, f := range b.Env.Families {
		for port := range svc.WithDefaults(0).Ports {
			for _, p := range from {
				list = append(list, visitor{from: p, family: f, port: port})
			}
		}
	}
	return list
}

// visit makes one connection per visitor, all concurrently, and returns the endpoints that answered. It fails if the
// oracle expects another result.
func (b *bed) visit(ctx context.Context, svc service, visitors []visitor,
	to destination) ([]netip.AddrPort, error) {
	var flows []network.Attempt
	for _, v := range visitors {
		flows = append(flows, svc.WithDefaults(0).Flow(v.from, to, v.port, v.family))
	}
	expected, err := b.Expect(flows)
	if err != nil {
		return nil, err
	}
	var failed testbed.Failures
	var answered []netip.AddrPort
	for i, seen := range b.TryAll(ctx, flows) {
		answered = append(answered, seen.Endpoint)
		failed.Add(expected[i].Check(seen))
	}
	return answered, failed.Err()
}

// settle makes each visitor's first connection, which determines its endpoint.
func (b *bed) settle(ctx context.Context, svc service, visitors []visitor, to destination) error {
	homes, err := b.visit(ctx, svc, visitors, to)
	for i, home := range homes {
		visitors[i].home = home
	}
	return err
}

// revisit makes another connection per visitor, which must reach the same endpoint.
func (b *bed) revisit(ctx context.Context, svc service, visitors []visitor, to destination) error {
	answered, err := b.visit(ctx, svc, visitors, to)
	if err != nil {
		return err
	}
	var failed testbed.Failures
	for i, v := range visitors {
		if answered[i] != v.home {
			failed.Add(fmt.Errorf(
				"flow: %s %v to the %v\nseen: delivered to %v\nwant: deliver to %v, where the client was before (S32)",
				v.from.Name, v.from.Addr(v.family), to, answered[i], v.home))
		}
	}
	return failed.Err()
}

// clientsStay checks that clients stay with their endpoint, on one service address after the other.
func clientsStay(ctx context.Context, b *bed, svc service) error {
	stay := func(to destination, visitors []visitor) error {
		if err := b.settle(ctx, svc, visitors, to); err != nil {
			return err
		}
		for range 3 {
			if err := b.revisit(ctx, svc, visitors, to); err != nil {
				return err
			}
		}
		return nil
	}
	for _, to := range everywhere {
		if err := stay(to, b.visitors(svc, 4, localPod3, theNode, remotePod3)); err != nil {
			return err
		}
	}
	svc.ExternalLocal = true
	if err := b.Put(ctx, svc); err != nil {
		return err
	}
	for _, to := range externalDestinations {
		if err := stay(to, b.visitors(svc, 4)); err != nil {
			return fmt.Errorf("with external traffic policy Local:\n\n%w", err)
		}
	}
	return nil
}

func clientsStayEverywhere(ctx context.Context, b *bed, svc service) error {
	visitors := b.visitors(svc, 4, localPod3, theNode, remotePod3)
	if err := b.settle(ctx, svc, visitors, toClusterIP); err != nil {
		return err
	}
	for range 6 {
		for _, to := range everywhere {
			if err := b.revisit(ctx, svc, visitors, to); err != nil {
				return err
			}
		}
	}
	// The clients of a removed endpoint share a new one.
	svc.Endpoints = withPhase(svc.Endpoints, localPod1, cluster.Unready)
	if err := b.Put(ctx, svc); err != nil {
		return err
	}
	err := b.settle(ctx, svc, visitors, toClusterIP)
	if err == nil {
		err = b.revisit(ctx, svc, visitors, toVIP)
	}
	if err != nil {
		return fmt.Errorf("after %s had become unusable: %w", localPod1, err)
	}
	return nil
}

// withPhase returns endpoints with the phase of one of them changed.
func withPhase(list []endpoint, at string, p cluster.Phase) []endpoint {
	list = slices.Clone(list)
	for i := range list {
		if list[i].At == at {
			list[i].Phase = p
		}
	}
	return list
}

func clientsSpread(ctx context.Context, b *bed, svc service) error {
	visitors := b.visitors(svc, testbed.Attempts(len(fourEndpoints)))
	if err := b.settle(ctx, svc, visitors, toClusterIP); err != nil {
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

func affinityEndsWithEndpoint(ctx context.Context, b *bed, svc service) error {
	visitors := b.visitors(svc, 8)
	if err := b.settle(ctx, svc, visitors, toClusterIP); err != nil {
		return err
	}
	for _, gone := range []endpoint{{At: localPod1, Phase: cluster.Unready},
		{At: remotePod1, Phase: cluster.Terminating}} {
		svc.Endpoints = withPhase(svc.Endpoints, gone.At, gone.Phase)
		if err := b.Put(ctx, svc); err != nil {
			return err
		}
		// The remaining endpoints answer all visitors. Reassigned visitors stay with their new endpoint.
		err := b.settle(ctx, svc, visitors, toClusterIP)
		if err == nil {
			err = b.revisit(ctx, svc, visitors, toClusterIP)
		}
		if err != nil {
			return fmt.Errorf("after %s had become unusable: %w", gone.At, err)
		}
	}
	return nil
}

func affinitySurvivesOthers(ctx context.Context, b *bed, svc service) error {
	visitors := b.visitors(svc, 8)
	if err := b.settle(ctx, svc, visitors, toClusterIP); err != nil {
		return err
	}
	removed := network.HostNamed(remotePod2)
	visitors = slices.DeleteFunc(visitors, func(v visitor) bool { return v.home.Addr() == removed.Addr(v.family) })
	for _, change := range []struct {
		what string
		svc  service
	}{
		{"another endpoint came", sticky(time.Hour, append(cluster.At(remotePod3), fourEndpoints...))},
		{"another endpoint went", sticky(time.Hour, cluster.At(localPod1, localPod2, remotePod1))},
	} {
		if err := b.Put(ctx, change.svc); err != nil {
			return err
		}
		if err := b.revisit(ctx, svc, visitors, toClusterIP); err != nil {
			return fmt.Errorf("after %s: %w", change.what, err)
		}
	}
	return nil
}

// affinityExpires waits until the service's affinity timeout has passed.
func affinityExpires(ctx context.Context, b *bed, svc service) error {
	visitors := b.visitors(svc, 10)
	// On a stalled machine the timeout may pass between the two connections; then try again.
	for began := time.Now(); ; {
		start := time.Now()
		if err := b.settle(ctx, svc, visitors, toClusterIP); err != nil {
			return err
		}
		err := b.revisit(ctx, svc, visitors, toClusterIP)
		if err == nil {
			break
		}
		if time.Since(start) < shortAffinity/2 || time.Since(began) > time.Minute {
			return fmt.Errorf("within the timeout: %w", err)
		}
	}
	if err := outlastAffinity(ctx); err != nil {
		return err
	}
	answered, err := b.visit(ctx, svc, visitors, toClusterIP)
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

// outlastAffinity waits until clients that do not return are free. Kernel timers are coarse.
func outlastAffinity(ctx context.Context) error {
	select {
	case <-time.After(shortAffinity + 1500*time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// loweredTimeoutFreesClients lowers an affinity timeout of an hour, and waits without a connection.
func loweredTimeoutFreesClients(ctx context.Context, b *bed, svc service) error {
	visitors := b.visitors(svc, 16)
	if err := b.settle(ctx, svc, visitors, toClusterIP); err != nil {
		return err
	}
	svc.Affinity = shortAffinity
	if err := b.Put(ctx, svc); err != nil {
		return err
	}
	if err := outlastAffinity(ctx); err != nil {
		return err
	}
	answered, err := b.visit(ctx, svc, visitors, toClusterIP)
	if err != nil {
		return err
	}
	free := map[model.Family]bool{}
	for i, v := range visitors {
		free[v.family] = free[v.family] || answered[i] != v.home
	}
	for _, f := range b.Env.Families {
		if !free[f] {
			return fmt.Errorf("%v: all %d clients are still sent to the endpoints where they were before the timeout was "+
				"lowered to %v, %v after that", f, len(visitors)/len(b.Env.Families), shortAffinity,
				shortAffinity+1500*time.Millisecond)
		}
	}
	return nil
}
