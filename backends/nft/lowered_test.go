package nft_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

var ipv4Table = dp.TableKey{Family: model.IPv4, Name: nft.DefaultTableName}

// clientsOf returns the set of clients of a service port, and the number that stands for the port, 0 if it has a set
// of its own.
func (r stickyRig) clientsOf(port string) (set *dp.Set, scope uint32) {
	r.t.Helper()
	name := r.setOf(port)
	require.NotEmpty(r.t, name)
	set = &dp.Set{Name: name, Key: []dp.Field{dp.SourceAddr, dp.Constant}, Dynamic: true}
	if !strings.HasPrefix(name, "clients-") {
		return set, 0
	}
	set.Key = []dp.Field{dp.SourceAddr, dp.Scope, dp.Constant}
	chain := regexp.MustCompile(`(?s)comment "` + regexp.QuoteMeta(port) + `"\n[^}]*?update @\S+ \{ ip saddr \. ` +
		`numgen random mod 1 offset (\d+) \. `)
	n, err := strconv.ParseUint(chain.FindStringSubmatch(r.dump(model.IPv4))[1], 10, 32)
	require.NoError(r.t, err)
	return set, uint32(n)
}

// key returns the key of the n-th client.
func (r stickyRig) key(scope uint32, n int) string {
	key := dp.AppendAddr(nil, netip.AddrFrom4([4]byte{203, byte(n >> 16), byte(n >> 8), byte(n)}))
	if scope > 0 {
		key = dp.AppendNumber(key, scope)
	}
	return string(dp.AppendNumber(key, 7))
}

// meet adds clients of a service port, from the first to before the last one, as the rules would.
func (r stickyRig) meet(port string, first, last int, timeout time.Duration) {
	r.t.Helper()
	set, scope := r.clientsOf(port)
	tx := dp.NewTransaction(ipv4Table)
	for n := first; n < last; n++ {
		tx.AddDynamic(set, timeout, dp.Element{Key: r.key(scope, n)})
	}
	require.NoError(r.t, r.fake.ApplyUnnoticed(tx))
}

// left returns how long each client of a service port stays.
func (r stickyRig) left(port string) map[int]time.Duration {
	r.t.Helper()
	set, scope := r.clientsOf(port)
	found := map[int]time.Duration{}
	_, err := r.fake.ReadDynamic(r.t.Context(), ipv4Table, set, func(e dp.Element, left time.Duration) {
		n := int(binary.BigEndian.Uint32([]byte(e.Key)) & 0xffffff)
		if e.Key == r.key(scope, n) {
			found[n] = left
		}
	})
	require.NoError(r.t, err)
	return found
}

// affinity changes the timeout of a service that services has made.
func (r stickyRig) affinity(namespace string, i int, timeout time.Duration) {
	r.Set(fm.Service(fmt.Sprintf("%s/s%d", namespace, i)).ClusterIP(fmt.Sprintf("10.96.%d.%d", len(namespace), i)).
		Port("p", 80).Affinity(timeout).Build())
}

// sharing are two service ports whose clients share a set: a namespace's first 16 have a set each.
func (r stickyRig) sharing() (one, another int) {
	var found []int
	for i := range 20 {
		if strings.HasPrefix(r.setOf(fmt.Sprintf("shop/s%d:p/TCP", i)), "clients-") {
			found = append(found, i)
		}
	}
	require.Len(r.t, found, 4)
	return found[0], found[1]
}

func TestClientsGetALoweredTimeout(t *testing.T) {
	const hour, minute = time.Hour, time.Minute
	for _, restart := range []bool{false, true} {
		t.Run(map[bool]string{false: "at the next Sync", true: "after a restart"}[restart], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newStickyRig(t)
				defer func() { r.backend.Close() }()
				r.services("shop", 0, 20)
				r.services("other", 0, 1)
				r.Sync()
				one, another := r.sharing()
				const own, bystander = "shop/s0:p/TCP", "other/s0:p/TCP"
				lowered, stays := fmt.Sprintf("shop/s%d:p/TCP", one), fmt.Sprintf("shop/s%d:p/TCP", another)
				require.True(t, strings.HasPrefix(r.setOf(own), "affinity-"))
				require.Equal(t, r.setOf(lowered), r.setOf(stays))
				for _, port := range []string{own, bystander, lowered, stays} {
					r.meet(port, 0, 3, hour)
					r.meet(port, 3, 4, time.Second)
				}
				if restart {
					r.Restart()
				}
				r.affinity("shop", 0, minute)
				r.affinity("shop", one, 2*minute)
				r.Sync()
				assert.Equal(t, map[int]time.Duration{0: minute, 1: minute, 2: minute, 3: time.Second}, r.left(own))
				assert.Equal(t, map[int]time.Duration{0: 2 * minute, 1: 2 * minute, 2: 2 * minute, 3: time.Second},
					r.left(lowered))
				for _, port := range []string{bystander, stays} {
					assert.Equal(t, map[int]time.Duration{0: hour, 1: hour, 2: hour, 3: time.Second}, r.left(port), port)
				}
				assert.NotContains(t, joined(r.commands(model.IPv4)), r.setOf(bystander)+" { 203.")
				listed := r.fake.Listed()
				r.Sync()
				assert.Empty(t, r.applied)
				assert.Equal(t, listed, r.fake.Listed(), "that was all")
			})
		})
	}
}

// Nothing is read for changes that lower no timeout, by the same process or the next.
func TestClientsAreReadOnlyForALoweredTimeout(t *testing.T) {
	r := newStickyRig(t)
	r.services("shop", 0, 20)
	r.Sync()
	one, _ := r.sharing()
	port := fmt.Sprintf("shop/s%d:p/TCP", one)
	for i := range 20 {
		r.meet(fmt.Sprintf("shop/s%d:p/TCP", i), 0, 3, time.Hour)
	}
	before := r.left(port)
	for _, change := range []struct {
		what string
		make func()
	}{
		{"nothing", func() {}},
		{"a raised timeout", func() { r.affinity("shop", one, 2*time.Hour) }},
		{"an endpoint that comes", func() { r.Set(fm.Endpoint(port, "10.244.9.9:80").Build()) }},
		{"one that comes during a restart", func() {
			r.Restart()
			r.Set(fm.Endpoint(port, "10.244.9.10:80").Build())
		}},
		{"one that goes during a restart", func() {
			r.Restart()
			r.Delete(fm.Endpoint(port, "10.244.9.9:80").Build())
		}},
		{"a resync", func() { r.backend.ForceResync() }},
		{"a port more in the set", func() { r.services("shop", 30, 31) }},
	} {
		t.Run(change.what, func(t *testing.T) {
			listed := r.fake.Listed()
			change.make()
			r.Sync()
			assert.Equal(t, listed, r.fake.Listed())
		})
	}
	assert.Equal(t, before, r.left(port))
}

// Whoever lowers a timeout for very many clients does not make the Syncs of others wait for all of them.
func TestASyncReadsOneBigSetOfClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newStickyRig(t)
		defer func() { r.backend.Close() }()
		r.services("shop", 0, 3)
		r.Sync()
		const clients = 1<<14 + 10
		for i := range 3 {
			r.meet(fmt.Sprintf("shop/s%d:p/TCP", i), 0, clients, time.Hour)
			r.affinity("shop", i, time.Minute)
		}
		isDone := func(i int) bool {
			for _, left := range r.left(fmt.Sprintf("shop/s%d:p/TCP", i)) {
				if left > time.Minute {
					return false
				}
			}
			return true
		}
		for batch := 1; batch <= 3; batch++ {
			listed := r.fake.Listed()
			r.Sync()
			assert.Equal(t, listed+clients, r.fake.Listed())
			for _, tx := range r.applied {
				assert.LessOrEqual(t, tx.Elements(), 2*400)
			}
			done := 0
			for i := range 3 {
				if isDone(i) {
					done++
				}
			}
			assert.Equal(t, batch, done)
		}
	})
}

// The backend does the rest by itself, and pauses between batches.
func TestClientsOfManySetsGetALoweredTimeoutInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := stickyRig{newRigThat(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}}, true)}
		defer func() { r.backend.Close() }()
		r.Set(backendtest.Node())
		r.services("shop", 0, 2)
		r.Sync()
		const clients = 1<<14 + 10
		for i := range 2 {
			r.meet(fmt.Sprintf("shop/s%d:p/TCP", i), 0, clients, time.Hour)
			r.affinity("shop", i, time.Minute)
		}
		var batches []time.Duration // when each began
		began, apply := time.Now(), r.fake.FailApply
		r.fake.FailApply = func(tx *dp.Transaction) error {
			if strings.Contains(tx.Text(), "timeout 1m }") && tx.Elements() > 0 {
				if n := len(batches); n == 0 || time.Since(began)-batches[n-1] > time.Minute {
					batches = append(batches, time.Since(began))
				}
				time.Sleep(time.Second)
			}
			return apply(tx)
		}
		r.Sync()
		time.Sleep(time.Hour)
		synctest.Wait()
		const takes = (clients + 399) / 400 * time.Second
		assert.Equal(t, []time.Duration{0, 10 * takes}, batches)
		for i := range 2 {
			for n, left := range r.left(fmt.Sprintf("shop/s%d:p/TCP", i)) {
				require.Equal(t, time.Minute, left, "client %d of %d", n, i)
			}
		}
	})
}

// A client that goes meanwhile, or any other failure, keeps nobody else from getting the timeout a little later.
func TestClientsThatCannotBeGivenALoweredTimeoutGetItLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := stickyRig{newRigThat(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}}, true)}
		defer func() { r.backend.Close() }()
		r.Set(backendtest.Node())
		r.services("shop", 0, 1)
		r.Sync()
		const port = "shop/s0:p/TCP"
		r.meet(port, 0, 10, time.Hour)
		apply, failures := r.fake.FailApply, 0
		r.fake.FailApply = func(tx *dp.Transaction) error {
			if failures < 3 && strings.Contains(tx.Text(), "delete element") {
				failures++
				return &dp.OpError{Table: tx.Table, Op: "delete elements", Err: syscall.ENOENT}
			}
			return apply(tx)
		}
		r.affinity("shop", 0, time.Minute)
		r.Sync()
		assert.Equal(t, time.Hour, r.left(port)[0])
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.Equal(t, 3, failures)
		assert.Equal(t, time.Minute, r.left(port)[9])
	})
}

// While rules change a set of clients, the kernel's list of it may leave some out. Where that never ends, neither does
// the reading.
func TestClientsThatTheKernelLeavesOutGetALoweredTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newStickyRig(t)
		defer func() { r.backend.Close() }()
		r.services("shop", 0, 1)
		r.Sync()
		const port, clients = "shop/s0:p/TCP", 100
		r.meet(port, 0, clients, time.Hour)
		lists := 0
		r.fake.LeftOut = func(i int) bool {
			if i == 0 {
				lists++
			}
			return lists < 5 && i%5 != lists
		}
		r.affinity("shop", 0, time.Minute)
		r.Sync()
		assert.Equal(t, 5+5, lists)
		r.fake.LeftOut = nil
		for n, left := range r.left(port) {
			assert.Equal(t, time.Minute, left, "client %d", n)
		}
		listed := r.fake.Listed()
		r.Sync()
		assert.Equal(t, listed, r.fake.Listed())
	})
}

// A timeout that is raised before its clients were given the lower one takes nothing away from them.
func TestATimeoutThatIsRaisedAgainHoldsForClientsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newStickyRig(t)
		defer func() { r.backend.Close() }()
		r.services("shop", 0, 2)
		r.Sync()
		for i := range 2 {
			r.meet(fmt.Sprintf("shop/s%d:p/TCP", i), 0, 3, time.Hour)
			r.affinity("shop", i, time.Minute)
		}
		apply := r.fake.FailApply
		r.fake.FailApply = func(tx *dp.Transaction) error {
			if strings.Contains(tx.Text(), "delete element") {
				return context.DeadlineExceeded
			}
			return apply(tx)
		}
		r.Sync()
		r.fake.FailApply = apply
		time.Sleep(time.Second)
		r.affinity("shop", 0, 30*time.Minute)
		r.Delete(model.ServiceName{Namespace: "shop", Name: "s1"})
		r.Sync()
		assert.Equal(t, map[int]time.Duration{0: 30 * time.Minute, 1: 30 * time.Minute, 2: 30 * time.Minute},
			r.left("shop/s0:p/TCP"))
	})
}
