package watch

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// countAsked counts the watches of each kind.
func countAsked(s *apiServer) map[kind]int {
	n := map[kind]int{}
	for _, r := range s.asked() {
		if r.verb != "list" { // a watch follows, unless the list is streamed
			n[r.kind]++
		}
	}
	return n
}

func TestClientsetSharesWatchesAmongTheRunsOfSeveralNodes(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		s.apply(service("a"), slice("a-1"), serviceCIDR("kubernetes"), node("n1"), node("n2"), node("n3"))
		c := newClientset(t, s.client(), ClientsetOptions{Shared: true})
		const n = 20
		var all []*recorder
		var stops []func()
		common := []string{"endpointslices.discovery.k8s.io default/a-1", "servicecidrs.networking.k8s.io kubernetes",
			"services default/a"}
		want := func(i int, more ...string) []string {
			return append(append([]string{fmt.Sprint("nodes n", i%2+1)}, common...), more...)
		}
		for i := range n {
			r := newRecorder(t)
			all = append(all, r)
			stops = append(stops, start(t, c, fmt.Sprint("n", i%2+1), r))
			if i == n/2 { // the others join what goes on
				r.waitSynced()
			}
		}
		noNode := newRecorder(t)
		start(t, c, "", noNode)
		for i, r := range all {
			r.waitSynced()
			assert.ElementsMatch(t, want(i), r.atSynced)
		}
		noNode.waitSynced()
		assert.ElementsMatch(t, common, noNode.atSynced)
		synctest.Wait()
		once := countAsked(s)
		assert.Len(t, once, 4)
		s.apply(service("b"))
		s.remove(slice("a-1"), node("n1"))
		common = []string{"servicecidrs.networking.k8s.io kubernetes", "services default/a", "services default/b"}
		for i, r := range all {
			if i%2 == 0 {
				r.waitFor(common...)
			} else {
				r.waitFor(want(i)...)
			}
		}

		// The run that began the watches is not the one that they end with.
		stops[0]()
		s.apply(service("c"))
		all[1].waitFor(want(1, "services default/c")...)
		for _, stop := range stops {
			stop()
		}
		noNode.waitFor(append(common, "services default/c")...)
		assert.Equal(t, once, countAsked(s), "as one run would ask")
	})
}

func TestClientsetSharedRunsStartAgainAfterTheLastEnded(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		s.apply(service("a"), node("n1"))
		c := newClientset(t, s.client(), ClientsetOptions{Shared: true, NoServiceCIDRs: true})
		for range 3 {
			r := newRecorder(t)
			stop := start(t, c, "n1", r)
			r.waitSynced()
			assert.Equal(t, []string{"nodes n1", "services default/a"}, r.atSynced)
			stop()
			assert.Nil(t, c.hub.objects, "nothing is kept for nobody")
		}
		s.remove(service("a"))
		r := newRecorder(t)
		start(t, c, "n1", r)
		r.waitSynced()
		assert.Equal(t, []string{"nodes n1"}, r.atSynced, "nothing of what was known before")
	})
}

func TestClientsetSharedRunsAreNotHeldUpByASlowOne(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *apiServer) {
		c := newClientset(t, s.client(), ClientsetOptions{Shared: true, NoServiceCIDRs: true})
		slow, fast := newRecorder(t), newRecorder(t)
		start(t, c, "", fast)
		start(t, c, "", slow)
		fast.waitSynced()
		slow.waitSynced()
		release := make(chan struct{})
		slow.onUpdate = sync.OnceFunc(func() { <-release })
		s.apply(service("first"))
		synctest.Wait()
		for i := range 10 {
			s.apply(service("a"), service(fmt.Sprint("b-", i)))
			synctest.Wait()
			s.remove(service(fmt.Sprint("b-", i)))
			synctest.Wait()
		}
		fast.waitFor("services default/a", "services default/first")
		close(release)
		slow.waitFor("services default/a", "services default/first")
		synctest.Wait()
		assert.Equal(t, 2, slow.updateCount(), "what is out of date is not handed over")
		assert.Greater(t, fast.updateCount(), 10)
	})
}

// TestClientsetSharedRunsComeAndGo is for the race detector: nothing is delivered after a Run, or twice as synced.
func TestClientsetSharedRunsComeAndGo(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, service("a"), node("n1"))
		c := newClientset(t, s.client(), ClientsetOptions{Shared: true})
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				for j := range 10 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration((i*7+j*13)%50)*time.Millisecond)
					r := newRecorder(t)
					assert.NoError(t, c.Run(ctx, "n1", r))
					r.over = true
					assert.LessOrEqual(t, r.syncedCount(), 1)
					cancel()
				}
			})
		}
		for i := range 100 {
			s.apply(service(fmt.Sprint("s-", i)))
			time.Sleep(3 * time.Millisecond) // virtual
		}
		wg.Wait()
		require.Nil(t, c.hub.objects)
	})
}
