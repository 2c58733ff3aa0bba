package dataplane

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// newRoutes opens the kernel without IPVS, which routing does not need.
func newRoutes(t *testing.T) (*Kernel, *testkit.Namespace) {
	t.Helper()
	need.Root(t)
	ns := testkit.NewNamespace(t)
	var k *Kernel
	ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(lo))
		k, err = openLink("none")
		return err
	})
	t.Cleanup(func() { require.NoError(t, k.Close()) })
	return k, ns
}

// routing returns the rules and routes of both families as ip(8) prints them.
func routing(t *testing.T, ns *testkit.Namespace) (text string) {
	t.Helper()
	ip := need.Program(t, "ip")
	ns.Do(func() error {
		for _, f := range []string{"-4", "-6"} {
			for _, args := range [][]string{{f, "rule"}, {f, "route", "show", "table", "all"}} {
				out, err := exec.CommandContext(t.Context(), ip, args...).CombinedOutput()
				require.NoError(t, err, "ip %v: %s", args, out)
				text += string(out)
			}
		}
		return nil
	})
	return text
}

func TestDeliveryComesChangesAndGoes(t *testing.T) {
	k, ns := newRoutes(t)
	before := routing(t, ns)
	require.NotContains(t, before, "7041132")
	for range 2 {
		for _, mark := range []uint32{1 << 31, 1 << 31, 0x2000} {
			for _, f := range model.Families() {
				require.NoError(t, k.Deliver(t.Context(), f, mark))
				got, err := k.Delivery(t.Context(), f, mark)
				require.NoError(t, err)
				require.Equal(t, mark, got)
			}
		}
		after := routing(t, ns)
		require.Equal(t, 2, strings.Count(after, "63:\tfrom all fwmark 0x2000/0x2000 lookup 7041132"), after)
		require.Equal(t, 2, strings.Count(after, "local default dev lo table 7041132 proto 107"), after)
		require.NotContains(t, after, "0x80000000")
		for _, f := range model.Families() {
			for range 2 {
				require.NoError(t, k.Deliver(t.Context(), f, 0))
				got, err := k.Delivery(t.Context(), f, 1<<31)
				require.NoError(t, err)
				require.Zero(t, got)
			}
		}
		require.Equal(t, before, routing(t, ns))
	}
}

// Rules and routes of other programs at the same priority and in the same table stay.
func TestRulesAndRoutesOfOthersStay(t *testing.T) {
	k, ns := newRoutes(t)
	for _, f := range []string{"-4", "-6"} {
		as(t, ns, f, "rule", "add", "priority", "63", "fwmark", "0x40/0x40", "lookup", "7041132")
		as(t, ns, f, "rule", "add", "priority", "63", "iif", "lo", "lookup", "77")
		as(t, ns, f, "rule", "add", "priority", "9", "fwmark", "0x200/0xf00", "lookup", "2004")
		as(t, ns, f, "route", "add", "local", "default", "dev", "lo", "table", "2004")
	}
	as(t, ns, "-4", "route", "add", "198.51.100.0/24", "dev", "lo", "table", "7041132")
	before := routing(t, ns)
	for _, f := range model.Families() {
		require.NoError(t, k.Deliver(t.Context(), f, 1<<31))
		got, err := k.Delivery(t.Context(), f, 1<<31)
		require.NoError(t, err)
		require.Equal(t, uint32(1<<31), got)
		require.NoError(t, k.Deliver(t.Context(), f, 0))
	}
	require.Equal(t, before, routing(t, ns))
}

// A rule of another program that takes the packets away is an error: it is not deleted.
func TestARuleOfOthersThatComesBeforeIsAnError(t *testing.T) {
	k, ns := newRoutes(t)
	as(t, ns, "rule", "add", "priority", "9", "fwmark", "0x80000000/0x80000000", "lookup", "77")
	as(t, ns, "route", "add", "unreachable", "default", "table", "77")
	require.ErrorIs(t, k.Deliver(t.Context(), model.IPv4, 1<<31), syscall.EEXIST)
	require.NoError(t, k.Deliver(t.Context(), model.IPv6, 1<<31))
	require.NoError(t, k.Deliver(t.Context(), model.IPv4, 0))
	require.Contains(t, routing(t, ns), "fwmark 0x80000000/0x80000000 lookup 77")
}

// The same rule made by another program, or by an administrator, is good enough.
func TestTheSameRuleOfOthersWillDo(t *testing.T) {
	k, ns := newRoutes(t)
	as(t, ns, "rule", "add", "priority", "63", "fwmark", "0x80000000/0x80000000", "lookup", "7041132")
	require.NoError(t, k.Deliver(t.Context(), model.IPv4, 1<<31))
	got, err := k.Delivery(t.Context(), model.IPv4, 1<<31)
	require.NoError(t, err)
	require.Equal(t, uint32(1<<31), got)
	require.NoError(t, k.Deliver(t.Context(), model.IPv4, 0))
	require.Contains(t, routing(t, ns), "fwmark 0x80000000/0x80000000 lookup 7041132")
}

func TestWhatOthersDeleteOfADeliveryIsNoticed(t *testing.T) {
	k, ns := newRoutes(t)
	for name, remove := range map[string][]string{
		"the rule":  {"rule", "del", "priority", "63"},
		"the route": {"route", "flush", "table", "7041132"},
	} {
		for option, f := range map[string]model.Family{"-4": model.IPv4, "-6": model.IPv6} {
			require.NoError(t, k.Deliver(t.Context(), f, 1<<31))
			as(t, ns, append([]string{option}, remove...)...)
			got, err := k.Delivery(t.Context(), f, 1<<31)
			require.NoError(t, err)
			require.NotEqual(t, uint32(1<<31), got, "%s, %v", name, f)
			require.NoError(t, k.Deliver(t.Context(), f, 1<<31))
			got, err = k.Delivery(t.Context(), f, 1<<31)
			require.NoError(t, err)
			require.Equal(t, uint32(1<<31), got)
		}
	}
}
