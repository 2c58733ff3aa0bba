package cases

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// ownerCases cover an address that several services claim (S59).
func ownerCases() []Case {
	return []Case{
		{Name: "of services that list one address the owner keeps it, and the oldest newcomer is next",
			Rules: "S59", inSimulation: true, run: ownersLast},
		{Name: "a node port and an external IP of the node's address have one owner",
			Rules: "S59", inSimulation: true, run: nodePortsLast},
	}
}

// owners is a state and the service that owns the contested address in it.
type owners struct {
	then     string
	restart  bool // restart the backend; all listed services existed before
	services []service
	owner    string
}

// inYear returns a service with one TCP port and a creation time.
func inYear(name string, slot, year int, eps ...string) service {
	return service{Name: name, Slot: slot, Ports: []servicePort{{Protocol: model.TCP}},
		Created: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC), Endpoints: cluster.At(eps...)}
}

// ownersLast tries every way to gain and to lose an address.
func ownersLast(ctx context.Context, b *bed) error {
	made := func(name string, slot, year int, eps ...string) service {
		s := inYear(name, slot, year, eps...)
		s.ContestsExternalIP = true
		return s
	}
	young, old, oldest := made("m", 2, 2023, localPod1), made("a", 3, 2022, remotePod1), made("z", 4, 2021, remotePod2)
	twin := made("y", 5, 2021, localPod2)
	asVIP := made("zz", 6, 2021, localPod1, remotePod1)
	asVIP.ContestsExternalIP, asVIP.ContestsVIP = false, true
	more := young
	more.Endpoints = cluster.At(localPod1, localPod2)
	contested := func(f model.Family) netip.AddrPort { return netip.AddrPortFrom(cluster.ContestedAddr(f), 80) }
	return b.own(ctx, contested, []owners{
		{"one lists it", false, []service{young}, "m"},
		{"an older one, and an earlier one by name, wants it too", false, []service{young, old}, "m"},
		{"the owner's endpoints change", false, []service{more, old}, "m"},
		{"the oldest one wants it too", false, []service{more, old, oldest}, "m"},
		{"the owner goes", false, []service{old, oldest}, "z"},
		{"the first owner comes back", false, []service{young, old, oldest}, "z"},
		{"the owner goes, and another one stays", false, []service{young}, "m"},
		{"two newcomers, one of them in the place of the owner", false, []service{old, oldest}, "z"},
		{"all had been there, and the backend is restarted", true, []service{young, old}, "a"},
		{"one of the same age as another comes by a VIP", true, []service{oldest, asVIP}, "zz"},
		{"two of the same age", true, []service{oldest, twin}, "y"},
	})
}

// nodePortsLast has a service list the node's address, with a port that is another service's node port.
func nodePortsLast(ctx context.Context, b *bed) error {
	node, external := inYear("m", 2, 2023, localPod1), inYear("a", 3, 2022, remotePod1)
	node.NodePort, external.ListsNode = true, true
	number := node.NodePortOf(0)
	external.Ports[0].Number = number
	other := inYear("k", 4, 2021, remotePod2)
	older := node
	older.Created = other.Created
	contested := func(f model.Family) netip.AddrPort {
		return netip.AddrPortFrom(network.PlanOf(f).HostAddresses()[0], number)
	}
	return b.own(ctx, contested, []owners{
		{"a node port is served there", false, []service{node}, "m"},
		{"an older one lists the address and the number", false, []service{node, external}, "m"},
		{"another service comes", false, []service{node, external, other}, "m"},
		{"the node port goes", false, []service{external, other}, "a"},
		{"the node port comes back", false, []service{external, node}, "a"},
		{"the one that lists the address goes", false, []service{node}, "m"},
		{"both had been there, and the backend is restarted", true, []service{node, external}, "a"},
		{"the same, and the node port is older", true, []service{older, external}, "m"},
	})
}

// own applies states and checks the owner of the contested address in each.
func (b *bed) own(ctx context.Context, contested func(model.Family) netip.AddrPort, states []owners) error {
	for _, w := range states {
		if w.restart {
			if err := b.Put(ctx); err != nil {
				return err
			}
			if err := b.Restart(ctx); err != nil {
				return err
			}
		}
		if err := b.Put(ctx, w.services...); err != nil {
			return err
		}
		if err := b.owns(ctx, contested, w.owner); err != nil {
			return fmt.Errorf("after this: %s; now the address is that of %q:\n\n%w", w.then, w.owner, err)
		}
	}
	return nil
}

// owns checks that a service owns the contested address.
func (b *bed) owns(ctx context.Context, contested func(model.Family) netip.AddrPort, owner string) error {
	var flows []network.Attempt
	for _, f := range b.Env.Families {
		for _, name := range []string{localPod3, theNode, client} {
			flows = append(flows, network.HostNamed(name).FlowTo(contested(f), model.TCP, "the contested address"))
		}
	}
	list, err := b.Expect(flows)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].Out, err = ofService(list[i].Out, owner); err != nil {
			return err
		}
	}
	return b.Verify(ctx, list)
}

// ofService restricts an outcome to the service that owns the address.
func ofService(out oracle.Outcome, name string) (oracle.Outcome, error) {
	all := append([]oracle.Outcome{out}, out.AlsoAllowed...)
	i := slices.IndexFunc(all, func(o oracle.Outcome) bool { return o.Port.Service.Name == name })
	if i < 0 {
		return out, fmt.Errorf("%q does not list the address: the case is wrong", name)
	}
	out = all[i]
	out.AlsoAllowed = nil
	return out, nil
}
