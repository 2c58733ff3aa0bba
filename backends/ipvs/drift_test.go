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

// One that fails is tried again, although the kernel does not report it again.
func TestARepairOfAddressesThatFailsIsTriedAgain(t *testing.T) {
	for name, fail := range map[string]func(k *kernel, fail func(string) error){
		"the list":   func(k *kernel, fail func(string) error) { k.ipvs.FailRead = fail },
		"an address": func(k *kernel, fail func(string) error) { k.ipvs.Fail = fail },
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
