package dataplane

import (
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// as runs a command of ip(8) as another program.
func as(t *testing.T, ns *testkit.Namespace, args ...string) {
	t.Helper()
	ip := need.Program(t, "ip")
	ns.Do(func() error {
		out, err := exec.CommandContext(t.Context(), ip, args...).CombinedOutput()
		require.NoError(t, err, "ip %v: %s", args, out)
		return nil
	})
}

// awaitDrift waits for a report, and returns the families that it is about.
func awaitDrift(t *testing.T, k *Kernel) (drifted []model.Family) {
	t.Helper()
	select {
	case <-k.Drift():
	case <-time.After(time.Minute):
		t.Fatal("nothing is reported")
	}
	for _, f := range model.Families() {
		if k.Drifted(f) {
			drifted = append(drifted, f)
		}
	}
	return drifted
}

var (
	first, second = netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2")
	sixth         = netip.MustParseAddr("fd00:96::1")
)

func addAll(t *testing.T, k *Kernel, addrs ...netip.Addr) {
	t.Helper()
	for _, a := range addrs {
		require.NoError(t, k.AddAddress(t.Context(), a))
	}
}

func TestAnAddressThatAnotherProgramDeletesIsReported(t *testing.T) {
	for name, test := range map[string]struct {
		addr   netip.Addr
		family model.Family
	}{"IPv4": {first, model.IPv4}, "IPv6": {sixth, model.IPv6}} {
		t.Run(name, func(t *testing.T) {
			k, ns := newKernel(t)
			addAll(t, k, first, second, sixth)
			as(t, ns, "address", "del", test.addr.String(), "dev", DefaultLink)
			require.Equal(t, []model.Family{test.family}, awaitDrift(t, k))
			list, err := k.Addresses(t.Context(), test.family)
			require.NoError(t, err)
			require.NotContains(t, list, test.addr)
			require.False(t, k.Drifted(test.family), "it has been read")
		})
	}
}

// An address that an earlier process has added counts once it has been read.
func TestAnAddressThatWasReadAndIsDeletedIsReported(t *testing.T) {
	k, ns := newKernel(t)
	as(t, ns, "link", "add", DefaultLink, "type", "dummy")
	as(t, ns, "address", "add", first.String(), "dev", DefaultLink)
	list, err := k.Addresses(t.Context(), model.IPv4)
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{first}, list)
	as(t, ns, "address", "del", first.String(), "dev", DefaultLink)
	require.Equal(t, []model.Family{model.IPv4}, awaitDrift(t, k))
}

func TestAnInterfaceThatAnotherProgramTakesAwayIsReported(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, ns *testkit.Namespace){
		"deleted": func(t *testing.T, ns *testkit.Namespace) { as(t, ns, "link", "del", DefaultLink) },
		"replaced": func(t *testing.T, ns *testkit.Namespace) {
			as(t, ns, "link", "del", DefaultLink)
			as(t, ns, "link", "add", DefaultLink, "type", "dummy")
		},
		"moved elsewhere": func(t *testing.T, ns *testkit.Namespace) {
			other := testkit.NewNamespace(t)
			ns.Do(func() error {
				link, err := netlink.LinkByName(DefaultLink)
				require.NoError(t, err)
				return netlink.LinkSetNsFd(link, other.FD())
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			k, ns := newKernel(t)
			for range 3 {
				addAll(t, k, first, second, sixth)
				take(t, ns)
				for drifted := awaitDrift(t, k); len(drifted) < 2; { // one report for each address
					drifted = awaitDrift(t, k)
				}
				for _, f := range model.Families() {
					list, err := k.Addresses(t.Context(), f)
					require.NoError(t, err)
					require.Empty(t, list)
				}
			}
		})
	}
}

// A request may meet the missing interface before the report of its deletion comes: the report is then about an
// interface that is not ours any more.
func TestAnInterfaceThatIsMissedByARequestIsReported(t *testing.T) {
	k, ns := newKernel(t)
	addAll(t, k, first, sixth)
	k.stop()
	k.monitor.Wait()
	as(t, ns, "link", "del", DefaultLink)
	addAll(t, k, second)
	require.Equal(t, []model.Family{model.IPv4, model.IPv6}, awaitDrift(t, k))
}

// An interface that is down has lost its IPv6 addresses, and serves none that is added.
func TestAnInterfaceThatAnotherProgramSetsDownIsSetUpAgain(t *testing.T) {
	k, ns := newKernel(t)
	addAll(t, k, first, sixth)
	as(t, ns, "link", "set", DefaultLink, "down")
	require.Equal(t, []model.Family{model.IPv6}, awaitDrift(t, k))
	list, err := k.Addresses(t.Context(), model.IPv6)
	require.NoError(t, err)
	require.Empty(t, list)
	addAll(t, k, sixth)
	ns.Do(func() error {
		link, err := netlink.LinkByName(DefaultLink)
		require.NoError(t, err)
		require.NotZero(t, link.Attrs().Flags&1, "it is up")
		return nil
	})
}

// Own deletions are not reported, nor is what happens on other interfaces. A deletion by another program comes last, so
// that all reports before it have been read.
func TestOwnDeletionsAreNotReported(t *testing.T) {
	k, ns := newKernel(t)
	as(t, ns, "link", "add", "other", "type", "dummy")
	as(t, ns, "address", "add", first.String(), "dev", "other")
	addAll(t, k, first, second, sixth)
	for _, a := range []netip.Addr{second, sixth} {
		require.NoError(t, k.DeleteAddress(t.Context(), a))
	}
	as(t, ns, "address", "del", first.String(), "dev", "other")
	as(t, ns, "address", "del", first.String(), "dev", DefaultLink)
	require.Equal(t, []model.Family{model.IPv4}, awaitDrift(t, k), "not IPv6")

	addAll(t, k, first, second, sixth)
	_, err := k.Addresses(t.Context(), model.IPv4)
	require.NoError(t, err)
	require.NoError(t, k.DeleteLink(t.Context()))
	addAll(t, k, sixth)
	as(t, ns, "address", "del", sixth.String(), "dev", DefaultLink)
	require.Equal(t, []model.Family{model.IPv6}, awaitDrift(t, k), "not IPv4")
}

// When more happens than the socket can hold, some of it is not reported: then everything is suspect.
func TestAfterLostReportsEverythingIsSuspect(t *testing.T) {
	k, ns := newKernel(t)
	addAll(t, k, first, sixth)
	k.mu.Lock() // the monitor waits with the first deletion
	ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		a := address(second)
		for range 1000 {
			require.NoError(t, netlink.AddrAdd(lo, a))
			require.NoError(t, netlink.AddrDel(lo, a))
		}
		return nil
	})
	k.mu.Unlock()
	require.Equal(t, []model.Family{model.IPv4, model.IPv6}, awaitDrift(t, k))
}
