package nft_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// stickyPackets is a service with four endpoints that answer with their names.
func stickyPackets(t *testing.T) (r *rig, s *model.Service, kernel *dataplane.Netlink) {
	flows := backendtest.NewFlows(t, testkit.EnterNamespace(t))
	r = newKernelRig(t, nft.Options{}, true)
	s = flows.Service()
	s.SessionAffinityTimeout = time.Hour
	r.Set(backendtest.Node(), s)
	for i := range 4 {
		ep := *flows.Endpoint(1 + i)
		ep.Target = netip.AddrPortFrom(ep.Target.Addr(), 9090)
		answerWithName(t, ep.Target.String())
		r.Set(&ep)
	}
	kernel, err := dataplane.NewNetlink()
	require.NoError(t, err)
	t.Cleanup(func() { kernel.Close() })
	return r, s, kernel
}

// clientsIn returns the set of clients of the only sticky service port.
func clientsIn(t testing.TB, kernel *dataplane.Netlink) *dataplane.Set {
	t.Helper()
	table, err := kernel.ReadTable(t.Context(), ipv4Table, func(*dataplane.TableSet) bool { return false })
	require.NoError(t, err)
	for _, s := range table.Sets {
		if s.Dynamic {
			return &dataplane.Set{Name: s.Name, Key: []dataplane.Field{dataplane.SourceAddr, dataplane.Constant}, Dynamic: true}
		}
	}
	require.Fail(t, "no set of clients")
	return nil
}

// A client that opens no connection is free soon after its timeout was lowered; one that does keeps its endpoint.
func TestIdleClientsAreFreeSoonAfterTheirTimeoutIsLowered(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(map[bool]string{false: "by a Sync", true: "during a restart"}[restart], func(t *testing.T) {
			r, s, kernel := stickyPackets(t)
			r.Sync()
			const clients, active, lowered = 40, 40, 5 * time.Second
			port := 0
			ask := func(client int) string {
				port++
				return askedBy(t, client, port, "10.96.255.1:80")
			}
			before := make([]string, clients)
			for client := range before {
				before[client] = ask(client)
			}
			home := ask(active)
			set := clientsIn(t, kernel)
			left := func() (n int, longest time.Duration) {
				_, err := kernel.ReadDynamic(t.Context(), ipv4Table, set,
					func(_ dataplane.Element, left time.Duration) { n, longest = n+1, max(longest, left) })
				require.NoError(t, err)
				return n, longest
			}
			n, longest := left()
			assert.Equal(t, clients+1, n)
			assert.Greater(t, longest, time.Minute)

			if restart {
				r.Restart()
			}
			again := *s
			again.SessionAffinityTimeout = lowered
			r.Set(&again)
			r.Sync()
			began := time.Now()
			_, longest = left()
			assert.LessOrEqual(t, longest, lowered)
			for asked := time.Now(); n > 1; time.Sleep(lowered / 50) {
				require.Less(t, time.Since(began), time.Minute, "%d clients are left", n)
				now := ask(active)
				if time.Since(asked) < lowered { // otherwise the machine has stalled
					require.Equal(t, home, now, "an active client")
				}
				home, asked = now, time.Now()
				n, _ = left()
			}
			elsewhere := 0
			for client, was := range before {
				if ask(client) != was {
					elsewhere++
				}
			}
			assert.Positive(t, elsewhere)
		})
	}
}

// BenchmarkALoweredTimeout is the first Sync of a backend after the timeout of a set's clients was lowered. (Later ones
// leave the clients to the background.)
func BenchmarkALoweredTimeout(b *testing.B) {
	for _, clients := range []int{1000, 16384, 65535} {
		b.Run(fmt.Sprint(clients, " clients"), func(b *testing.B) {
			testkit.EnterNamespace(b)
			r := stickyRig{newKernelRig(b, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}}, false)}
			r.Set(backendtest.Node())
			r.services("shop", 0, 1)
			r.Sync()
			kernel, err := dataplane.NewNetlink()
			require.NoError(b, err)
			defer kernel.Close()
			set := clientsIn(b, kernel)
			tx := dataplane.NewTransaction(ipv4Table)
			for n := range clients {
				tx.AddDynamic(set, 24*time.Hour, dataplane.Element{Key: r.key(0, n)})
			}
			require.NoError(b, kernel.Apply(b.Context(), tx))
			timeout := 23 * time.Hour
			watch := backendtest.NewStopwatch(b)
			for b.Loop() {
				timeout -= time.Second
				r.affinity("shop", 0, timeout)
				r.Restart()
				watch.Time(r.Sync)
			}
		})
	}
}
