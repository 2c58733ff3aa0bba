package dataplane

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func serverAt(addr string, p model.Protocol) Server {
	a := netip.MustParseAddrPort(addr)
	return Server{ServerKey: ServerKey{Family: model.FamilyOf(a.Addr()), Addr: a.Addr(), Port: a.Port(), Protocol: p},
		Scheduler: "rr", Flags: Owned}
}

func byMark(f model.Family, mark uint32) Server {
	return Server{ServerKey: ServerKey{Family: f, Mark: mark}, Scheduler: "sh", Flags: Owned | SourceHashFallback}
}

// testInterface is what the kernel and its model have in common: what backends rely on.
func testInterface(t *testing.T, d Interface) {
	ctx := t.Context()
	sticky := serverAt("10.96.0.2:53", model.UDP)
	sticky.Flags, sticky.Persistence = Owned|Persistent, 3*time.Hour
	six := serverAt("[fd00:96::1]:80", model.SCTP)
	six.Scheduler, six.Flags = "mh", Owned|MaglevPort
	foreign := serverAt("10.96.0.3:80", model.TCP)
	foreign.Flags, foreign.Scheduler = 0, "wrr"
	tcp := serverAt("10.96.0.1:80", model.TCP)
	all := []Server{tcp, sticky, six, foreign, byMark(model.IPv4, 0x12), byMark(model.IPv6, 0x12)}
	pod4, pod6 := netip.MustParseAddrPort("10.244.0.1:8080"), netip.MustParseAddrPort("[fd00:244::1]:8080")

	t.Run("virtual servers are read as they were written", func(t *testing.T) {
		for _, s := range all {
			require.NoError(t, d.AddServer(ctx, s), s.ServerKey)
			require.ErrorIs(t, d.AddServer(ctx, s), syscall.EEXIST, s.ServerKey)
		}
		list, err := d.Servers(ctx)
		require.NoError(t, err)
		require.ElementsMatch(t, all, list)
	})
	t.Run("real servers are read as they were written", func(t *testing.T) {
		for _, s := range all {
			target := pod4
			if s.Family == model.IPv6 {
				target = pod6
			}
			require.NoError(t, d.AddDestination(ctx, s.ServerKey, Destination{Target: target, Weight: 1}))
			require.ErrorIs(t, d.AddDestination(ctx, s.ServerKey, Destination{Target: target}), syscall.EEXIST)
			require.NoError(t, d.UpdateDestination(ctx, s.ServerKey, Destination{Target: target}))
			list, err := d.Destinations(ctx, s.ServerKey)
			require.NoError(t, err)
			require.Equal(t, []Destination{{Target: target}}, list)
		}
	})
	t.Run("a virtual server that changes keeps its real servers", func(t *testing.T) {
		changed := sticky
		changed.Scheduler, changed.Flags, changed.Persistence = "lc", Owned, 0
		require.NoError(t, d.UpdateServer(ctx, changed))
		list, err := d.Servers(ctx)
		require.NoError(t, err)
		require.Contains(t, list, changed)
		destinations, err := d.Destinations(ctx, sticky.ServerKey)
		require.NoError(t, err)
		require.Len(t, destinations, 1)
	})
	t.Run("a virtual server that goes takes its real servers along", func(t *testing.T) {
		require.NoError(t, d.DeleteServer(ctx, tcp.ServerKey))
		require.NoError(t, d.AddServer(ctx, tcp))
		list, err := d.Destinations(ctx, tcp.ServerKey)
		require.NoError(t, err)
		require.Empty(t, list)
	})
	t.Run("what is not there", func(t *testing.T) {
		missing := serverAt("10.96.9.9:80", model.TCP)
		require.ErrorIs(t, d.UpdateServer(ctx, missing), syscall.ESRCH)
		require.NoError(t, d.DeleteServer(ctx, missing.ServerKey))
		require.ErrorIs(t, d.AddDestination(ctx, missing.ServerKey, Destination{Target: pod4}), syscall.ESRCH)
		require.ErrorIs(t, d.UpdateDestination(ctx, missing.ServerKey, Destination{Target: pod4}), syscall.ESRCH)
		require.NoError(t, d.DeleteDestination(ctx, missing.ServerKey, pod4))
		require.ErrorIs(t, d.UpdateDestination(ctx, tcp.ServerKey, Destination{Target: pod4}), syscall.ENOENT)
		require.NoError(t, d.DeleteDestination(ctx, tcp.ServerKey, pod4))
		list, err := d.Destinations(ctx, missing.ServerKey)
		require.NoError(t, err)
		require.Empty(t, list)
		missing.Scheduler = "nosuch"
		require.ErrorIs(t, d.AddServer(ctx, missing), syscall.ENOENT)
	})
	t.Run("errors say what was asked for", func(t *testing.T) {
		missing := serverAt("10.96.9.9:80", model.TCP)
		pod := Destination{Target: pod4, Weight: 1}
		require.ErrorContains(t, d.AddServer(ctx, foreign), "add virtual server 10.96.0.3:80/TCP: file exists")
		require.ErrorContains(t, d.UpdateServer(ctx, missing), "change virtual server 10.96.9.9:80/TCP: no such")
		require.ErrorContains(t, d.AddDestination(ctx, missing.ServerKey, pod),
			"add endpoint 10.244.0.1:8080 to 10.96.9.9:80/TCP: no such")
		require.ErrorContains(t, d.UpdateDestination(ctx, tcp.ServerKey, pod),
			"change endpoint 10.244.0.1:8080 of 10.96.0.1:80/TCP to weight 1: no such")
	})
	t.Run("addresses", func(t *testing.T) {
		four, six := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")
		for range 2 {
			require.NoError(t, d.DeleteLink(ctx))
			require.NoError(t, d.DeleteAddress(ctx, four), "there is no interface")
			list, err := d.Addresses(ctx, model.IPv4)
			require.NoError(t, err)
			require.Empty(t, list)
			for range 2 {
				require.NoError(t, d.AddAddress(ctx, four))
				require.NoError(t, d.AddAddress(ctx, six))
			}
			for f, want := range map[model.Family]netip.Addr{model.IPv4: four, model.IPv6: six} {
				list, err := d.Addresses(ctx, f)
				require.NoError(t, err)
				require.Equal(t, []netip.Addr{want}, list)
			}
			require.NoError(t, d.DeleteAddress(ctx, four))
			require.NoError(t, d.DeleteAddress(ctx, four))
		}
	})
	t.Run("delivery", func(t *testing.T) {
		for _, f := range model.Families() {
			for _, mark := range []uint32{0, 1 << 31, 0x2000, 0x2000, 0, 0} {
				require.NoError(t, d.Deliver(ctx, f, mark))
				got, err := d.Delivery(ctx, f, 0x2000)
				require.NoError(t, err)
				if mark == 1<<31 {
					mark = IncompleteDelivery // Deliver would replace it
				}
				require.Equal(t, mark, got)
			}
		}
	})
	t.Run("what is no host's address is refused", func(t *testing.T) {
		for _, a := range []string{"0.0.0.0", "224.0.0.1", "239.1.1.1", "255.255.255.255"} {
			target := netip.AddrPortFrom(netip.MustParseAddr(a), 80)
			err := d.AddDestination(ctx, tcp.ServerKey, Destination{Target: target, Weight: 1})
			require.ErrorIs(t, err, syscall.EINVAL, a)
		}
		for _, a := range []string{"::", "ff02::1", "ff0e::1", "fe80::1"} {
			target := netip.AddrPortFrom(netip.MustParseAddr(a), 80)
			err := d.AddDestination(ctx, six.ServerKey, Destination{Target: target, Weight: 1})
			require.ErrorIs(t, err, syscall.EINVAL, a)
		}
		for _, a := range []string{"::", "::1", "ff02::1", "ff0e::1"} {
			require.ErrorIs(t, d.AddAddress(ctx, netip.MustParseAddr(a)), syscall.EADDRNOTAVAIL, a)
		}
	})
	t.Run("timeouts", func(t *testing.T) {
		require.NoError(t, d.SetTimeouts(ctx, Timeouts{TCP: time.Hour, UDP: time.Minute}))
	})
	t.Run("a context that has ended", func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		_, err := d.Servers(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, d.DeleteServer(ctx, tcp.ServerKey), context.Canceled)
		require.ErrorIs(t, d.AddAddress(ctx, tcp.Addr), context.Canceled)
		list, err := d.Servers(t.Context())
		require.NoError(t, err)
		require.Len(t, list, len(all))
	})
}

func TestTheFakeIsLikeTheKernel(t *testing.T) { testInterface(t, NewFake()) }
