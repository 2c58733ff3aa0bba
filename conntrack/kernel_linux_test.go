package conntrack

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// kernelTable is the conntrack table of a network namespace of its own, filled and read through another library.
type kernelTable struct {
	*Kernel
	t      testing.TB
	ns     *testkit.Namespace
	handle *netlink.Handle
}

func newKernelTable(t testing.TB) *kernelTable {
	t.Helper()
	ns := testkit.NewNamespace(t)
	handle, err := netlink.NewHandleAt(ns.Handle(), unix.NETLINK_NETFILTER)
	require.NoError(t, err)
	t.Cleanup(handle.Close)
	return &kernelTable{Kernel: &Kernel{NetNS: ns.FD()}, t: t, ns: ns, handle: handle}
}

func nlFamily(f model.Family) netlink.InetFamily {
	if f == model.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func (k *kernelTable) Add(flows ...Flow) {
	for _, f := range flows {
		k.create(f, unix.IPPROTO_UDP)
	}
}

func (k *kernelTable) create(f Flow, protocol uint8) {
	k.t.Helper()
	tuple := func(source, destination netip.AddrPort) netlink.IPTuple {
		return netlink.IPTuple{Protocol: protocol, SrcIP: net.IP(source.Addr().AsSlice()), SrcPort: source.Port(),
			DstIP: net.IP(destination.Addr().AsSlice()), DstPort: destination.Port()}
	}
	family := nlFamily(model.FamilyOf(f.Destination.Addr()))
	flow := netlink.ConntrackFlow{
		FamilyType: uint8(family), Forward: tuple(f.Source, f.Destination),
		Reverse: tuple(f.ReplySource, f.ReplyDestination),
		TimeOut: 600,
	}
	if protocol == unix.IPPROTO_TCP {
		flow.ProtoInfo = &netlink.ProtoInfoTCP{State: nl.TCP_CONNTRACK_ESTABLISHED}
	}
	require.NoError(k.t, k.handle.ConntrackCreate(netlink.ConntrackTable, family, &flow), "%v", f)
}

// list returns the flows of a protocol.
func (k *kernelTable) list(protocol uint8) []Flow {
	var flows []Flow
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		list, err := k.handle.ConntrackTableList(netlink.ConntrackTable, family)
		require.NoError(k.t, err)
		for _, f := range list {
			addrPort := func(ip net.IP, port uint16) netip.AddrPort {
				a, _ := netip.AddrFromSlice(ip)
				return netip.AddrPortFrom(a.Unmap(), port)
			}
			if f.Forward.Protocol == protocol {
				flows = append(flows, Flow{
					addrPort(f.Forward.SrcIP, f.Forward.SrcPort), addrPort(f.Forward.DstIP, f.Forward.DstPort),
					addrPort(f.Reverse.SrcIP, f.Reverse.SrcPort), addrPort(f.Reverse.DstIP, f.Reverse.DstPort),
				})
			}
		}
	}
	return flows
}

func (k *kernelTable) Flows() []Flow { return k.list(unix.IPPROTO_UDP) }

func TestClausesOnTheKernel(t *testing.T) {
	testClauses(t, func(t *testing.T) testTable { return newKernelTable(t) })
}

// manyFlows are distinct flows to one destination.
func manyFlows(f model.Family, n int, to, target netip.AddrPort) []Flow {
	flows := make([]Flow, n)
	for i := range flows {
		source := netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 14), 1}), uint16(1024+i&0x3fff))
		if f == model.IPv6 {
			source = netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 14), 15: 1}),
				uint16(1024+i&0x3fff))
		}
		flows[i] = Flow{source, to, target, source}
	}
	return flows
}

// requireSame is require.ElementsMatch, in time that does not grow with the square of the number.
func requireSame(t *testing.T, want, got []Flow) {
	t.Helper()
	count := func(flows []Flow) map[Flow]int {
		m := make(map[Flow]int, len(flows))
		for _, f := range flows {
			m[f]++
		}
		return m
	}
	require.True(t, maps.Equal(count(want), count(got)), "%d flows, not those %d", len(got), len(want))
}

func TestKernelShowsEveryUDPFlowOfTheFamilyOnce(t *testing.T) {
	for _, f := range model.Families() {
		t.Run(f.String(), func(t *testing.T) {
			table := newKernelTable(t)
			flows := manyFlows(f, 3000, netip.AddrPortFrom(host(f, 1), 53), netip.AddrPortFrom(host(f, 2), 5353))
			table.Add(flows...)
			other := model.IPv4 + model.IPv6 - f
			table.Add(manyFlows(other, 3, netip.AddrPortFrom(host(other, 1), 53),
				netip.AddrPortFrom(host(other, 2), 53))...)
			var seen []Flow
			deleted, err := table.DeleteUDP(t.Context(), f, nil, func(flow Flow) bool {
				seen = append(seen, flow)
				return false
			})
			require.NoError(t, err)
			require.Zero(t, deleted)
			require.False(t, table.cannotFilter.Load(), "this kernel can filter")
			requireSame(t, flows, seen)
			require.Len(t, table.Flows(), 3003)
		})
	}
}

func TestKernelDeletesManyAtOnceWithOrWithoutAFilter(t *testing.T) {
	table := newKernelTable(t)
	for _, f := range model.Families() {
		for _, filter := range []bool{true, false} {
			table.cannotFilter.Store(!filter)
			dns := netip.AddrPortFrom(host(f, 1), 53)
			dead, live := netip.AddrPortFrom(host(f, 2), 53), netip.AddrPortFrom(host(f, 3), 53)
			// More than a few batches, and one that is not full.
			flows := manyFlows(f, 1500, dns, dead)
			for i := 1000; i < len(flows); i++ {
				flows[i].ReplySource = live
			}
			tcp := Flow{netip.AddrPortFrom(host(f, 9), 4000), dns, dead, netip.AddrPortFrom(host(f, 9), 4000)}
			table.Add(flows...)
			table.create(tcp, unix.IPPROTO_TCP)
			deleted, err := table.DeleteUDP(t.Context(), f, nil,
				func(flow Flow) bool { return flow.ReplySource != live })
			require.NoError(t, err)
			require.Equal(t, 1000, deleted)
			requireSame(t, flows[1000:], table.Flows())
			require.Equal(t, []Flow{tcp}, table.list(unix.IPPROTO_TCP), "TCP is never touched")
			require.NoError(t, table.handle.ConntrackTableFlush(netlink.ConntrackTable))
		}
	}
}

func TestKernelLeavesOtherZonesAlone(t *testing.T) {
	table := newKernelTable(t)
	f := model.IPv4
	flow := flowTo(f, 4000, netip.AddrPortFrom(host(f, 1), 53), netip.AddrPortFrom(host(f, 2), 53))
	table.createInZone(flow, 7)
	for _, filter := range []bool{true, false} {
		table.cannotFilter.Store(!filter)
		deleted, err := table.DeleteUDP(t.Context(), f, nil, func(flow Flow) bool {
			t.Errorf("it is shown: %v", flow)
			return true
		})
		require.NoError(t, err)
		require.Zero(t, deleted)
	}
	require.Len(t, table.Flows(), 1)
}

func TestADirectionInAnotherZoneIsLeftAlone(t *testing.T) {
	var b nfnetlink.Builder
	protocol := b.Open(ctaTupleProto)
	b.Bytes(ctaProtoNumber, []byte{unix.IPPROTO_UDP})
	b.Close(protocol)
	_, ok := parseTuple(b.Buf)
	require.True(t, ok)
	b.Uint16(ctaTupleZone, 7)
	_, ok = parseTuple(b.Buf)
	require.False(t, ok)
}

func TestKernelDeletesWhileItReads(t *testing.T) {
	table := newKernelTable(t)
	f := model.IPv4
	table.Add(manyFlows(f, 1000, netip.AddrPortFrom(host(f, 1), 53), netip.AddrPortFrom(host(f, 2), 53))...)
	calls, left := 0, 0
	deleted, err := table.DeleteUDP(t.Context(), f, nil, func(Flow) bool {
		if calls++; calls == 1000 {
			left = len(table.Flows())
		}
		return true
	})
	require.NoError(t, err)
	require.Equal(t, 1000, deleted)
	require.Equal(t, 1000-1000/deleteBatch*deleteBatch, left)
}

// createInZone makes a flow in a zone, which the other library cannot.
func (k *kernelTable) createInZone(f Flow, zone uint16) {
	const ctNew, ctaTimeout = unix.NFNL_SUBSYS_CTNETLINK << 8, 7
	conn, err := nfnetlink.Dial(nfnetlink.Config{NetNS: k.NetNS})
	require.NoError(k.t, err)
	defer conn.Close()
	b := conn.Request(ctNew, unix.NLM_F_CREATE|unix.NLM_F_ACK, nfnetlink.Proto(model.FamilyOf(f.Destination.Addr())))
	tuple := func(kind uint16, source, destination netip.AddrPort) {
		whole := b.Open(kind)
		ip := b.Open(ctaTupleIP)
		b.Bytes(ctaIPv4Source, source.Addr().AsSlice())
		b.Bytes(ctaIPv4Destination, destination.Addr().AsSlice())
		b.Close(ip)
		protocol := b.Open(ctaTupleProto)
		b.Bytes(ctaProtoNumber, []byte{unix.IPPROTO_UDP})
		b.Uint16(ctaProtoSourcePort, source.Port())
		b.Uint16(ctaProtoDestinationPort, destination.Port())
		b.Close(protocol)
		b.Close(whole)
	}
	tuple(ctaTupleOrig, f.Source, f.Destination)
	tuple(ctaTupleReply, f.ReplySource, f.ReplyDestination)
	b.Uint32(ctaTimeout, 512)
	b.Uint16(ctaZone, zone)
	b.End()
	require.NoError(k.t, conn.Send(b.Buf))
	require.NoError(k.t, conn.Answers(func(m nfnetlink.Message) error {
		errno, hint := m.Failure()
		require.Zero(k.t, errno, hint)
		return nil
	}))
}

func TestKernelCountsOnlyWhatItDeleted(t *testing.T) {
	table := newKernelTable(t)
	f := model.IPv4
	gone := flowTo(f, 4000, netip.AddrPortFrom(host(f, 1), 53), netip.AddrPortFrom(host(f, 2), 53))
	table.Add(gone)
	deleted, err := table.DeleteUDP(t.Context(), f, nil, func(Flow) bool {
		// Somebody else is quicker.
		require.NoError(t, table.handle.ConntrackTableFlush(netlink.ConntrackTable))
		return true
	})
	require.NoError(t, err, "that a flow is gone already is not an error")
	require.Zero(t, deleted)
}

func TestKernelStopsWithItsContext(t *testing.T) {
	table := newKernelTable(t)
	f := model.IPv4
	table.Add(manyFlows(f, 2000, netip.AddrPortFrom(host(f, 1), 53), netip.AddrPortFrom(host(f, 2), 53))...)
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	_, err := table.DeleteUDP(ctx, f, nil, func(Flow) bool {
		calls++
		cancel()
		return false
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, calls, 2000)
	_, err = table.DeleteUDP(ctx, f, nil, func(Flow) bool { return true })
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, table.Flows(), 2000)
}

func TestADeleteWithoutATupleIsNeverSent(t *testing.T) {
	for _, e := range []entry{{}, {tuple: []byte{}, id: []byte{1, 2, 3, 4}}, {tuple: []byte{4, 0, 1, 0x80}},
		{id: []byte{1, 2, 3, 4}}} {
		var d deletes // without a socket
		require.NoError(t, d.add(e))
		require.Empty(t, d.batch.Buf)
		require.NoError(t, d.flush())
	}
}

func TestKernelWithoutAccessSaysSo(t *testing.T) {
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer f.Close()
	_, err = (&Kernel{NetNS: int(f.Fd())}).DeleteUDP(t.Context(), model.IPv4, nil, func(Flow) bool { return true })
	require.Error(t, err)
	require.False(t, errors.Is(err, ErrInterrupted))
	require.ErrorContains(t, err, "conntrack: opening a netlink socket")
}

// Whatever comes from the kernel, parsing ends and does not panic; what it takes for an entry can be deleted safely.
func FuzzParseEntry(f *testing.F) {
	var b nfnetlink.Builder
	whole := b.Open(ctaTupleOrig)
	protocol := b.Open(ctaTupleProto)
	b.Bytes(ctaProtoNumber, []byte{17})
	b.Close(protocol)
	b.Close(whole)
	f.Add(append([]byte{2, 0, 0, 0}, b.Buf...))
	f.Add([]byte{2, 0, 0, 0, 4, 0, 1, 0x80})
	f.Fuzz(func(t *testing.T, data []byte) {
		e, ok := parseEntry(nfnetlink.Message{Data: data})
		if ok != e.deletable() {
			t.Fatalf("ok is %v, tuple %v, id %v", ok, e.tuple, e.id)
		}
	})
}
