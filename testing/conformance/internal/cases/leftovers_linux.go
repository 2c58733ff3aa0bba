package cases

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

// leftoverCases cover a node on which an older kube-proxy has run: its rules are there when the backend starts.
func leftoverCases() []Case {
	return []Case{{Name: leftoversCase, Rules: "S50", iptables: true, Hook: "Cleanup",
		has: func(f backend.Factory) bool { return f.Cleanup != nil },
		run: serving(external(service{Endpoints: cluster.At(localPod1, remotePod1)}), leftoversTakeNothing)}}
}

// strangerPort is the number of a pod's host port, for which another program has rules.
const strangerPort = 9999

// leftoversTakeNothing has the backend start where an older kube-proxy served the same service, with another endpoint.
// The backend may remove these rules, but need not.
func leftoversTakeNothing(ctx context.Context, b *bed, svc service) error {
	variant := ""
	err := b.Network.Node.Do(func() (err error) {
		variant, err = iptablesInUse(ctx, b.Env.Families)
		return err
	})
	if err != nil {
		return err
	}
	if err := b.Cleanup(ctx); err != nil {
		return err
	}
	remove := func() error {
		return b.Network.Node.Do(func() error {
			return removeLeftovers(context.WithoutCancel(ctx), variant, b.Env.Families)
		})
	}
	defer func() { _ = remove() }()
	if err := b.addLeftovers(ctx, variant, svc.WithDefaults(0)); err != nil {
		return &testbed.SetupError{Err: fmt.Errorf("add the rules of an older kube-proxy: %w", err)}
	}
	if err := b.Start(ctx, b.Setup); err != nil {
		return err
	}
	st := step{services: one(svc), traffic: []traffic{{from: fromAll, to: everywhere,
		want: keeping(localPod1, remotePod1)}}}
	if err := b.step(ctx, st); err != nil {
		return fmt.Errorf("the rules of an older kube-proxy were there before the backend:\n\n%w", err)
	}
	for _, f := range b.Env.Families {
		if err := b.leadsToOldEndpoint(b.strangersFlow(f)); err != nil {
			return fmt.Errorf("another program's rules, which jump to some of these, do not work any more:\n\n%w", err)
		}
	}
	// Rules of the backend may be where the older kube-proxy's were.
	if err := b.Cleanup(ctx); err != nil {
		return err
	}
	if err := remove(); err != nil {
		return err
	}
	return b.Start(ctx, b.Setup)
}

// addLeftovers adds the rules, and checks that they apply.
func (b *bed) addLeftovers(ctx context.Context, variant string, full service) error {
	for _, f := range b.Env.Families {
		program := iptablesProgram(variant, f) + "-restore"
		err := b.Network.Node.Do(func() error {
			return runIPTables(ctx, program, leftovers(full, f), "-w", "10", "--noflush")
		})
		if err != nil {
			return err
		}
		flows := []network.Attempt{b.strangersFlow(f)}
		for _, to := range everywhere {
			flows = append(flows, full.Flow(network.HostNamed(client), to, 0, f))
		}
		if err := testbed.Each(flows, b.leadsToOldEndpoint); err != nil {
			return err
		}
	}
	return nil
}

// strangersFlow returns a flow to the other program's host port.
func (b *bed) strangersFlow(f model.Family) network.Attempt {
	to := netip.AddrPortFrom(network.PlanOf(f).HostAddresses()[0], strangerPort)
	return network.HostNamed(client).FlowTo(to, model.TCP, "another program's host port")
}

// leadsToOldEndpoint checks that a flow gets to the endpoint of the older rules, with any source.
func (b *bed) leadsToOldEndpoint(a network.Attempt) error {
	want := network.HostNamed(localPod2).ServerAt(a.Family())
	if seen := b.Try(a, b.Timeouts.Timeouts); seen.Endpoint != want {
		return fmt.Errorf("flow: %v\nseen: %v\nwant: deliver to %v", a, seen, want)
	}
	return nil
}

// removeLeftovers empties table nat, in which no rules of the test or of a backend are left.
func removeLeftovers(ctx context.Context, variant string, families []model.Family) error {
	var errs []error
	for _, f := range families {
		program := iptablesProgram(variant, f)
		for _, what := range []string{"-F", "-X"} {
			errs = append(errs, runIPTables(ctx, program, "", "-w", "10", "-t", "nat", what))
		}
	}
	return errors.Join(errs...)
}

// leftovers returns the rules that kube-proxy of Kubernetes 1.23 has in table nat for a service whose endpoint is
// local-2, as input of iptables-restore. Later versions have no chain KUBE-XLB-. Another program's chain jumps to two
// of kube-proxy's.
func leftovers(full service, f model.Family) string {
	var b strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	add("*nat")
	for _, chain := range []string{"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ",
		"KUBE-MARK-DROP", hostPortChain} {
		add(":%s - [0:0]", chain)
	}
	for i := range full.Ports {
		for _, kind := range []string{"SVC", "SEP", "FW", "XLB"} {
			add(":%s - [0:0]", oldChain(kind, i))
		}
	}
	add(`-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-MARK-DROP -j MARK --or-mark 0x8000`)
	target := network.HostNamed(localPod2).ServerAt(f)
	for i, p := range full.Ports {
		protocol := strings.ToLower(p.Protocol.String())
		match := func(to destination) string {
			a := to.Resolve(full, i, f)
			return fmt.Sprintf("-d %v -p %s -m %[2]s --dport %d", network.HostPrefix(a.Addr()), protocol, a.Port())
		}
		svc, sep, fw, xlb := oldChain("SVC", i), oldChain("SEP", i), oldChain("FW", i), oldChain("XLB", i)
		add("-A KUBE-SERVICES %s -j %s", match(toClusterIP), svc)
		add("-A KUBE-SERVICES %s -j KUBE-MARK-MASQ", match(toExternalIP))
		add("-A KUBE-SERVICES %s -j %s", match(toExternalIP), svc)
		add("-A KUBE-SERVICES %s -j %s", match(toVIP), fw)
		add("-A KUBE-NODEPORTS -p %s -m %[1]s --dport %d -j KUBE-MARK-MASQ", protocol, full.NodePortOf(i))
		add("-A KUBE-NODEPORTS -p %s -m %[1]s --dport %d -j %s", protocol, full.NodePortOf(i), svc)
		add("-A %s -j %s\n-A %[1]s -j KUBE-MARK-DROP", fw, xlb)
		add("-A %s -s %v -j %s\n-A %[1]s -j KUBE-MARK-MASQ\n-A %[1]s -j %[4]s", xlb, network.PlanOf(f).AllPods, svc, sep)
		add("-A %s -j %s", svc, sep)
		add("-A %s -p %s -m %[2]s -j DNAT --to-destination %v", sep, protocol, target)
	}
	add(`-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A PREROUTING -m addrtype --dst-type LOCAL -j %s
-A %[1]s -p tcp -m tcp --dport %d -j KUBE-MARK-MASQ
-A %[1]s -p tcp -m tcp --dport %[2]d -j %[3]s
-A %[1]s -p tcp -m tcp --dport %[2]d -j DNAT --to-destination %[4]v
COMMIT`, hostPortChain, strangerPort, oldChain("XLB", 0), target)
	return b.String()
}

// oldChain returns the name of a chain of kube-proxy for the n-th port of a service.
func oldChain(kind string, n int) string { return fmt.Sprintf("KUBE-%s-OLDERKUBEPROXY%02d", kind, n) }
