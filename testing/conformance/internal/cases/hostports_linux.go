package cases

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// hostPortCases cover rules of other programs that translate what is for the node's own addresses, as a network plugin
// does for pods with host ports. A backend that gives a service's address to the node must not lose it to them.
func hostPortCases() []Case {
	svc := external(service{Endpoints: cluster.At(localPod1, remotePod1)})
	return []Case{
		{Name: "a pod's host port takes nothing that is for a service", Rules: "S62",
			run: serving(svc, hostPortsTakeNothing)},
		{Name: "a pod's host port does not take a node port", Rules: "S62", Hook: "Cleanup",
			has: func(f backend.Factory) bool { return f.Cleanup != nil }, run: serving(svc, hostPortsLeaveNodePorts)},
	}
}

// hostPorts are the rules of another program: traffic to a port of the node, or of any address, goes to a pod.
type hostPorts struct {
	to         string // the name of the pod
	ports      []uint16
	anyAddress bool
	table      bool     // the rules are in a table of nftables
	variants   []string // and of iptables, where these variants are installed
	undo       []func() error
}

// hostPortsOf are those of a network plugin, in every kind of table.
func hostPortsOf(ports ...uint16) *hostPorts {
	return &hostPorts{to: localPod2, ports: ports, table: true, variants: []string{"nft", "legacy"}}
}

// hostPortsTakeNothing has another program give a pod the port of a service.
func hostPortsTakeNothing(ctx context.Context, b *bed, svc service) error {
	return b.takesNothing(ctx, svc, hostPortsOf(svc.WithDefaults(0).Ports[0].Number),
		[]destination{toClusterIP, toExternalIP, toVIP})
}

// takesNothing adds another program's rules, which must not get what is for a service: first they are younger than the
// backend's, then older, if the backend can be removed.
func (b *bed) takesNothing(ctx context.Context, svc service, h *hostPorts, to []destination) error {
	remove, err := b.addHostPorts(ctx, h)
	if err != nil {
		return err
	}
	defer remove()
	st := step{services: one(svc), traffic: []traffic{{from: fromAll, to: to, want: keeping(localPod1, remotePod1)}}}
	if err := b.traffic(ctx, st); err != nil {
		return fmt.Errorf("another program's rules came after the backend's:\n\n%w", err)
	}
	if b.Factory.Cleanup == nil {
		return nil
	}
	if err := b.younger(ctx, st); err != nil {
		return err
	}
	return b.hostPortsAnswer(ctx, h.ports[0])
}

// hostPortsLeaveNodePorts has another program give a pod a host port with the number of a node port. It does so before
// the backend starts: most backends would lose the node port to later rules.
func hostPortsLeaveNodePorts(ctx context.Context, b *bed, svc service) error {
	full := svc.WithDefaults(0)
	remove, err := b.addHostPorts(ctx, hostPortsOf(full.Ports[0].Number, full.NodePortOf(0), full.NodePortOf(1)))
	if err != nil {
		return err
	}
	defer remove()
	return b.younger(ctx, step{services: one(svc), traffic: []traffic{{from: fromAll,
		to: []destination{toNodePort}, want: keeping(localPod1, remotePod1)}}})
}

// younger replaces the backend with one whose rules are younger than another program's, and tries a step.
func (b *bed) younger(ctx context.Context, st step) error {
	if err := b.Cleanup(ctx); err != nil {
		return err
	}
	if err := b.Start(ctx, b.Setup); err != nil {
		return err
	}
	if err := b.step(ctx, st); err != nil {
		return fmt.Errorf("another program's rules came before the backend's:\n\n%w", err)
	}
	return nil
}

// addHostPorts adds another program's rules, and checks that they apply.
func (b *bed) addHostPorts(ctx context.Context, h *hostPorts) (remove func(), err error) {
	remove = func() { _ = b.Network.Node.Do(h.remove) }
	if err = b.Network.Node.Do(func() error { return h.add(context.WithoutCancel(ctx), b.Env.Families) }); err == nil {
		err = b.hostPortsAnswer(ctx, h.ports[0])
	}
	if err != nil {
		remove()
		return nil, fmt.Errorf("add host ports: %w", err)
	}
	return remove, nil
}

// hostPortsAnswer checks that the other program's rules apply to traffic that is not for a service.
func (b *bed) hostPortsAnswer(ctx context.Context, port uint16) error {
	var list []bystander
	for _, f := range b.Env.Families {
		to := netip.AddrPortFrom(network.PlanOf(f).HostAddresses()[0], port)
		for _, p := range []model.Protocol{model.TCP, model.UDP} {
			flow := network.HostNamed(client).FlowTo(to, p, "a host port")
			list = append(list, bystander{flow, network.HostNamed(localPod2).ServerAt(f)})
		}
	}
	return b.tryBystanders(ctx, list)
}

// add adds the rules. ctx must last until they have been removed.
func (h *hostPorts) add(ctx context.Context, families []model.Family) error {
	for _, f := range families {
		if h.table {
			if err := h.addTable(f); err != nil {
				return err
			}
		}
		for _, variant := range h.variants {
			if err := h.addChains(ctx, variant, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes everything that was added.
func (h *hostPorts) remove() error {
	var errs []error
	for _, undo := range slices.Backward(h.undo) {
		errs = append(errs, undo())
	}
	h.undo = nil
	return errors.Join(errs...)
}

const hostPortChain = "FOREIGN-HOSTPORTS"

// addChains adds the rules with a variant of iptables, if it is installed, as it has to be in CI.
func (h *hostPorts) addChains(ctx context.Context, variant string, f model.Family) error {
	program := iptablesProgram(variant, f)
	if _, found := need.Find(program); !found {
		if need.IsRequired() {
			return fmt.Errorf("%s: %w, and KPL_REQUIRE=1 does not allow doing without it", program, exec.ErrNotFound)
		}
		return nil
	}
	if variant == "nft" {
		if err := dropUnusedNAT(f); err != nil {
			return err
		}
	}
	run := func(command string) error {
		return runIPTables(ctx, program, "", strings.Fields("-w 10 -t nat "+command)...)
	}
	add, undo := []string{"-N " + hostPortChain}, []string{"-F " + hostPortChain, "-X " + hostPortChain}
	for _, protocol := range []string{"tcp", "udp"} {
		for _, port := range h.ports {
			add = append(add, fmt.Sprintf("-A %s -p %s --dport %d -j DNAT --to-destination %v", hostPortChain, protocol,
				port, network.HostNamed(h.to).ServerAt(f)))
		}
	}
	for _, builtin := range []string{"PREROUTING", "OUTPUT"} {
		jump := builtin + " -m addrtype --dst-type LOCAL -j " + hostPortChain
		if h.anyAddress {
			jump = builtin + " -j " + hostPortChain
		}
		add, undo = append(add, "-A "+jump), slices.Insert(undo, 0, "-D "+jump)
	}
	h.undo = append(h.undo, func() error {
		var errs []error
		for _, command := range undo {
			errs = append(errs, run(command))
		}
		return errors.Join(errs...)
	})
	for _, command := range add {
		if err := run(command); err != nil {
			return err
		}
	}
	return nil
}

// addTable adds the rules to a table of their own.
func (h *hostPorts) addTable(f model.Family) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	family := nftFamily(f)
	table := conn.AddTable(&nftables.Table{Name: foreignTable + "_ports", Family: family})
	for name, hook := range map[string]*nftables.ChainHook{"prerouting": nftables.ChainHookPrerouting,
		"output": nftables.ChainHookOutput} {
		chain := conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeNAT, Hooknum: hook,
			Priority: nftables.ChainPriorityNATDest})
		for _, p := range []model.Protocol{model.TCP, model.UDP} {
			for _, port := range h.ports {
				rule := translation(byte(family), p, port, network.HostNamed(h.to).ServerAt(f))
				if !h.anyAddress {
					rule = append(toLocalAddress(), rule...)
				}
				conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
			}
		}
	}
	if err := conn.Flush(); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
			return nil // a kernel without nftables
		}
		return err
	}
	h.undo = append(h.undo, func() error {
		conn.DelTable(table)
		return conn.Flush()
	})
	return nil
}

// toLocalAddress returns "fib daddr type local".
func toLocalAddress() []expr.Any {
	return []expr.Any{&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
		equals(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL))}
}

// translation returns "meta l4proto PROTOCOL th dport PORT dnat to TARGET".
func translation(family byte, p model.Protocol, port uint16, to netip.AddrPort) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equals([]byte{byte(p)}),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		equals(binary.BigEndian.AppendUint16(nil, port)),
		&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, to.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: 1, RegProtoMin: 2, Specified: true},
	}
}

// equals compares the first register.
func equals(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }
