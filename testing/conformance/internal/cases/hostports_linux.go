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

// hostPorts are the rules of another program: traffic to a port of the node goes to a pod.
type hostPorts struct {
	to    string // the place of the pod
	ports []uint16
	undo  []func() error
}

// hostPortsTakeNothing has another program give a pod the port of a service, first with rules that are younger than
// the backend's, then with rules that are older, if the backend can be removed.
func hostPortsTakeNothing(ctx context.Context, b *bed, svc service) error {
	number := svc.WithDefaults(0).Ports[0].Number
	remove, err := b.addHostPorts(ctx, number)
	if err != nil {
		return err
	}
	defer remove()
	st := step{services: one(svc), traffic: []traffic{{from: fromAll,
		to: []destination{toClusterIP, toExternalIP, toVIP}, want: keeping(localPod1, remotePod1)}}}
	if err := b.traffic(ctx, st); err != nil {
		return fmt.Errorf("another program's rules came after the backend's:\n\n%w", err)
	}
	if b.Factory.Cleanup == nil {
		return nil
	}
	if err := b.younger(ctx, st); err != nil {
		return err
	}
	return b.hostPortsAnswer(ctx, number)
}

// hostPortsLeaveNodePorts has another program give a pod a host port with the number of a node port. It does so before
// the backend starts: most backends would lose the node port to later rules.
func hostPortsLeaveNodePorts(ctx context.Context, b *bed, svc service) error {
	full := svc.WithDefaults(0)
	remove, err := b.addHostPorts(ctx, full.Ports[0].Number, full.NodePortOf(0), full.NodePortOf(1))
	if err != nil {
		return err
	}
	defer remove()
	return b.younger(ctx, step{services: one(svc), traffic: []traffic{{from: fromAll,
		to: []destination{toNodePort}, want: keeping(localPod1, remotePod1)}}})
}

// younger replaces the backend by one whose rules are younger than another program's, and tries a step.
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

// addHostPorts has another program give host ports to a pod, and checks that they answer.
func (b *bed) addHostPorts(ctx context.Context, ports ...uint16) (remove func(), err error) {
	h := hostPorts{to: localPod2, ports: ports}
	remove = func() { _ = b.Network.Node.Do(h.remove) }
	if err = b.Network.Node.Do(func() error { return h.add(context.WithoutCancel(ctx), b.Env.Families) }); err == nil {
		err = b.hostPortsAnswer(ctx, ports[0])
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

// add adds the rules to a table of nftables, and with the iptables programs that are installed.
func (h *hostPorts) add(ctx context.Context, families []model.Family) error {
	for _, f := range families {
		if err := h.addTable(f); err != nil {
			return err
		}
		prefix := "ip"
		if f == model.IPv6 {
			prefix = "ip6"
		}
		for _, variant := range []string{"nft", "legacy"} {
			if err := h.addChains(ctx, prefix+"tables-"+variant, f); err != nil {
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

// addChains adds the rules with an iptables program, if it is installed. ctx must last until they have been removed.
func (h *hostPorts) addChains(ctx context.Context, name string, f model.Family) error {
	program, found := need.Find(name)
	if !found {
		return nil
	}
	run := func(command string) error {
		out, err := exec.CommandContext(ctx, program, strings.Fields("-w 10 -t nat "+command)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %s: %w: %s", program, command, err, out)
		}
		return nil
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
	family := nftables.TableFamilyIPv4
	if f == model.IPv6 {
		family = nftables.TableFamilyIPv6
	}
	table := conn.AddTable(&nftables.Table{Name: foreignTable + "_ports", Family: family})
	for name, hook := range map[string]*nftables.ChainHook{"prerouting": nftables.ChainHookPrerouting,
		"output": nftables.ChainHookOutput} {
		chain := conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeNAT, Hooknum: hook,
			Priority: nftables.ChainPriorityNATDest})
		for _, p := range []model.Protocol{model.TCP, model.UDP} {
			for _, port := range h.ports {
				conn.AddRule(&nftables.Rule{Table: table, Chain: chain,
					Exprs: translation(byte(family), p, port, network.HostNamed(h.to).ServerAt(f))})
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

// translation returns "fib daddr type local meta l4proto PROTOCOL th dport PORT dnat to TARGET".
func translation(family byte, p model.Protocol, port uint16, to netip.AddrPort) []expr.Any {
	is := func(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }
	return []expr.Any{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
		is(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, is([]byte{byte(p)}),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		is(binary.BigEndian.AppendUint16(nil, port)),
		&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, to.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: 1, RegProtoMin: 2, Specified: true},
	}
}
