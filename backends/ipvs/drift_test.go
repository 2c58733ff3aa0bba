package ipvs

import (
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// The addresses come back without a Sync.
func TestWhatSomebodyDeletesOfTheInterfaceComesBackAtOnce(t *testing.T) {
	six := fm.Service("default/six").ClusterIP("fd00:96::10").Port("http", 80).Build()
	for name, test := range map[string]struct {
		lost    []netip.Addr // none: the interface
		repairs int
	}{
		"the interface":    {nil, 2},
		"one IPv4 address": {[]netip.Addr{netip.MustParseAddr("10.96.0.10")}, 1},
		"one IPv6 address": {[]netip.Addr{netip.MustParseAddr("fd00:96::10")}, 1},
		"one of each":      {[]netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKernel(t)
				b := k.start(t)
				defer b.Close()
				put(t, b, append(web(), backendtest.Node(), six)...)
				synctest.Wait() // nothing wakes it any more but what is deleted
				want, applied := k.ipvs.Dump(), k.nft.Applied()
				require.Contains(t, want, "address fd00:96::10")
				k.ipvs.TakeCalls()
				k.ipvs.DeleteAsSomebodyElse(test.lost...)
				synctest.Wait()
				require.Equal(t, want, k.ipvs.Dump())
				require.True(t, k.ipvs.HasLink())
				require.Equal(t, applied, k.nft.Applied(), "the guards were there all the time")
				_, repairs := b.Repairs()
				require.Equal(t, test.repairs, repairs)
				calls := k.ipvs.TakeCalls()
				require.Equal(t, []string{"Addresses"}, slices.Compact(calls.Reads))
				for _, call := range calls.Writes {
					require.Contains(t, call, "add address ")
				}
			})
		})
	}
}

// The kernel does not report it, so the backend looks for it. It lists virtual servers and nothing else.
func TestVirtualServersThatSomebodyDeletesComeBackWithoutAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel(t)
		b := k.start(t)
		defer b.Close()
		put(t, b, append(web(), backendtest.Node())...)
		want, table := k.ipvs.Dump(), k.table(model.IPv4)
		k.ipvs.TakeCalls()
		time.Sleep(3*time.Hour + time.Minute)
		calls := k.ipvs.TakeCalls()
		require.Equal(t, slices.Repeat([]string{"Servers"}, 3*2), calls.Reads, "one an hour for each family")
		require.Empty(t, calls.Writes)

		gone := key("10.96.0.10:80", model.TCP)
		require.NoError(t, k.ipvs.DeleteServer(t.Context(), gone))
		k.ipvs.TakeCalls()
		time.Sleep(time.Hour)
		require.Equal(t, want, k.ipvs.Dump())
		require.Equal(t, table, k.table(model.IPv4))
		require.Equal(t, []string{"add virtual server 10.96.0.10:80/TCP",
			"add endpoint 10.244.1.5:8080 to 10.96.0.10:80/TCP",
			"add endpoint 10.244.2.5:8080 to 10.96.0.10:80/TCP"}, k.ipvs.TakeCalls().Writes)
		_, repairs := b.Repairs()
		require.Equal(t, 1, repairs)

		// One that cannot be added is reported, and tried again.
		require.NoError(t, k.ipvs.DeleteServer(t.Context(), gone))
		fail := func(f func(string) error) {
			k.ipvs.Lock()
			defer k.ipvs.Unlock()
			k.ipvs.SetFail(f)
		}
		fail(func(string) error { return syscall.ENOBUFS })
		time.Sleep(time.Hour)
		fail(nil)
		last, _ := b.Repairs()
		require.ErrorIs(t, last[0].Err, syscall.ENOBUFS)
		time.Sleep(time.Minute)
		require.Equal(t, want, k.ipvs.Dump())
	})
}

// One that the kernel refuses when it is restored is refused like any other: the next Sync says so, and a retry adds
// it.
func TestADeletedVirtualServerThatIsRefusedIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel(t)
		b := k.start(t)
		defer b.Close()
		put(t, b, append(web(), backendtest.Node())...)
		want := k.ipvs.Dump()
		fail := func(f func(string) error) {
			k.ipvs.Lock()
			defer k.ipvs.Unlock()
			k.ipvs.SetFail(f)
		}
		require.NoError(t, k.ipvs.DeleteServer(t.Context(), key("10.96.0.10:80", model.TCP)))
		fail(func(call string) error {
			if call == "add virtual server 10.96.0.10:80/TCP" {
				return syscall.EINVAL
			}
			return nil
		})
		time.Sleep(2 * time.Hour)
		_, repairs := b.Repairs()
		require.Zero(t, repairs, "nothing was restored")
		for range 2 {
			require.Equal(t, []string{"default/web:http/TCP"}, failedPorts(t, b.Sync(t.Context())))
		}
		b.ResyncFailed()
		require.Equal(t, []string{"default/web:http/TCP"}, failedPorts(t, b.Sync(t.Context())))
		fail(nil)
		b.ResyncFailed()
		require.NoError(t, b.Sync(t.Context()))
		require.Equal(t, want, k.ipvs.Dump())
	})
}

// One that fails is tried again, although the kernel does not report it again.
func TestARepairOfAddressesThatFailsIsTriedAgain(t *testing.T) {
	for name, fail := range map[string]func(k *kernel, fail func(string) error){
		"the list":   func(k *kernel, fail func(string) error) { k.ipvs.SetFailRead(fail) },
		"an address": func(k *kernel, fail func(string) error) { k.ipvs.SetFail(fail) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKernel(t)
				b := k.start(t)
				defer b.Close()
				put(t, b, append(web(), backendtest.Node())...)
				synctest.Wait()
				want, failures := k.ipvs.Dump(), 0
				fail(k, func(string) error {
					if failures++; failures == 1 {
						return syscall.ENOBUFS
					}
					return nil
				})
				k.ipvs.DeleteAsSomebodyElse()
				time.Sleep(time.Second)
				require.Equal(t, want, k.ipvs.Dump())
				last, repairs := b.Repairs()
				require.Equal(t, 1, repairs)
				require.ErrorIs(t, last[1].Err, syscall.ENOBUFS)
			})
		})
	}
}

// Two programs that undo each other's work do not keep the node busy: the pauses grow up to 30 s.
func TestAnInterfaceThatIsDeletedAgainAndAgainCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel(t)
		b := k.start(t)
		defer b.Close()
		put(t, b, append(web(), backendtest.Node())...)
		k.ipvs.TakeCalls()
		for range 10 * 60 {
			k.ipvs.DeleteAsSomebodyElse()
			time.Sleep(time.Second)
		}
		calls := k.ipvs.TakeCalls()
		require.Less(t, len(calls.Reads), 40, "in ten minutes")
		require.Less(t, len(calls.Writes), 40)
		require.Greater(t, len(calls.Writes), 10)
		time.Sleep(time.Minute)
		require.Contains(t, k.ipvs.Dump(), "address 10.96.0.10")
	})
}
