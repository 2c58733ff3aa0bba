package dataplane

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// newKernel opens the kernel in a network namespace of the test's own.
func newKernel(t *testing.T) (*Kernel, *testkit.Namespace) {
	need.Root(t)
	if !IsLoaded() {
		require.Empty(t, os.Getenv("KPL_VM_KERNEL"), "kernels of testing/vm have IPVS")
		t.Skip("needs a kernel with IPVS, see testing/vm")
	}
	ns := testkit.NewNamespace(t)
	var k *Kernel
	ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		// Without a table of local routes, which comes with the first address, the kernel takes every real server for a
		// broadcast address.
		require.NoError(t, netlink.LinkSetUp(lo))
		k, err = NewKernel(t.Context(), "")
		return err
	})
	t.Cleanup(func() { require.NoError(t, k.Close()) })
	return k, ns
}

func TestTheKernelIsLikeTheFake(t *testing.T) {
	k, _ := newKernel(t)
	testInterface(t, k)
}

// Text returns what ipvsadm prints.
func TestTextIsWhatIpvsadmPrints(t *testing.T) {
	k, ns := newKernel(t)
	ipvsadm := need.Program(t, "ipvsadm")
	ownUDP := serverAt("10.96.0.2:53", model.UDP)
	ownUDP.Flags, ownUDP.Persistence = Owned|Persistent, 3*time.Hour
	sctp6 := serverAt("[fd00:96::1]:80", model.SCTP)
	sctp6.Scheduler, sctp6.Flags = "mh", Owned|MaglevPort
	foreign := serverAt("10.96.0.3:80", model.TCP)
	foreign.Flags, foreign.Scheduler = 0, "wrr"
	want := ""
	for _, s := range []Server{serverAt("10.96.0.1:80", model.TCP), ownUDP, sctp6, foreign,
		byMark(model.IPv4, 0x42ba40c9), byMark(model.IPv6, 0x12)} {
		list := []Destination{{Target: netip.MustParseAddrPort("10.244.0.1:8080"), Weight: 1},
			{Target: netip.MustParseAddrPort("10.244.0.2:8080")}}
		if s.Family == model.IPv6 {
			list = []Destination{{Target: netip.MustParseAddrPort("[fd00:244::1]:8080"), Weight: 1}}
		}
		require.NoError(t, k.AddServer(t.Context(), s))
		for _, d := range list {
			require.NoError(t, k.AddDestination(t.Context(), s.ServerKey, d))
		}
		want += Text(s, list)
	}
	var printed []byte
	ns.Do(func() (err error) {
		printed, err = exec.CommandContext(t.Context(), ipvsadm, "-Sn").Output()
		return err
	})
	lines := func(text string) []string { return slices.Sorted(strings.Lines(text)) }
	require.Equal(t, lines(want), lines(string(printed)))
}

// A reply to one request must not be taken for a reply to another one.
func TestCallsFromManyGoroutinesDoNotMix(t *testing.T) {
	k, _ := newKernel(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s := serverAt(fmt.Sprintf("10.96.0.%d:80", i+1), model.TCP)
			target := netip.MustParseAddrPort(fmt.Sprintf("10.244.0.%d:8080", i+1))
			for range 20 {
				assert.NoError(t, k.AddServer(t.Context(), s))
				assert.NoError(t, k.AddDestination(t.Context(), s.ServerKey, Destination{Target: target, Weight: 1}))
				list, err := k.Destinations(t.Context(), s.ServerKey)
				assert.NoError(t, err)
				assert.Equal(t, []Destination{{Target: target, Weight: 1}}, list)
				assert.NoError(t, k.DeleteServer(t.Context(), s.ServerKey))
			}
		})
	}
	wg.Wait()
}

// A call whose context ends closes the socket. The next one opens another, whatever its thread, in the same namespace.
func TestASocketThatWasClosedIsOpenedAgainInItsNamespace(t *testing.T) {
	k, _ := newKernel(t)
	s := serverAt("10.96.0.1:80", model.TCP)
	require.NoError(t, k.AddServer(t.Context(), s))
	k.handle.Close()
	k.handle = nil
	list, err := k.Servers(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Server{s}, list)
}

// moby/ipvs would wait for a reply forever.
func TestACallThatIsCancelledMidwayLeavesTheNextOneAlone(t *testing.T) {
	k, _ := newKernel(t)
	s := serverAt("10.96.0.1:80", model.TCP)
	require.NoError(t, k.AddServer(t.Context(), s))
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if _, err := k.Servers(ctx); err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
		cancel()
		list, err := k.Servers(t.Context())
		require.NoError(t, err)
		require.Equal(t, []Server{s}, list)
	}
}

func TestAnInterfaceDeletedByAnotherProgramIsCreatedAgain(t *testing.T) {
	k, ns := newKernel(t)
	a, b := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2")
	require.NoError(t, k.AddAddress(t.Context(), a))
	ns.Do(func() error {
		link, err := netlink.LinkByName(DefaultLink)
		require.NoError(t, err)
		return netlink.LinkDel(link)
	})
	require.NoError(t, k.DeleteAddress(t.Context(), a))
	require.NoError(t, k.AddAddress(t.Context(), b))
	list, err := k.Addresses(t.Context(), model.IPv4)
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{b}, list)
}

func TestWithoutIPVSTheErrorSaysWhatToLoad(t *testing.T) {
	if IsLoaded() {
		t.Skip("this kernel has IPVS")
	}
	t.Setenv("PATH", "") // it would load it
	_, err := NewKernel(t.Context(), "")
	require.EqualError(t, err, "the kernel has no IPVS: load the module ip_vs (modprobe ip_vs)")
	var missing *MissingModuleError
	require.ErrorAs(t, err, &missing)
}
