package dropin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestOthersAreCleanedUpAfterTheFirstSyncThatSucceededUntilThatHasSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := klog.NewContext(t.Context(), logr.Discard())
		var backend sink.Recorder
		backend.FailNext(errors.New("not yet"))
		calls := 0
		s := &sinks{TeeSink: sink.Tee(&backend), others: &others{
			find: func(context.Context) []string { return nil },
			remove: func(context.Context) error {
				if calls++; calls < 3 {
					return errors.New("the rules may be left")
				}
				return nil
			},
		}}
		require.Error(t, s.Sync(ctx))
		assert.Zero(t, calls)
		for i, want := range []int{1, 2, 3, 3, 3} {
			for range 3 { // that there are many Syncs is no reason to try it more often
				require.NoError(t, s.Sync(ctx))
				assert.Equal(t, want, calls, "hour %d", i)
			}
			time.Sleep(time.Hour)
		}
	})
}

// Rules that are there at the start may be left over. Rules that come back after they were removed belong to a running
// kube-proxy.
func TestAKubeProxyThatRunsBesideIsToldFromOneThatHasEnded(t *testing.T) {
	type step struct {
		after time.Duration
		found bool // there is something of kube-proxy
		fails bool // to be removed
		want  string
	}
	for name, steps := range map[string][]step{
		"none":      {{0, false, false, "removed"}, {time.Minute, false, false, ""}, {time.Hour, false, false, ""}},
		"left over": {{0, true, false, "removed"}, {time.Minute, false, false, ""}, {time.Hour, false, false, ""}},
		"running":   {{0, true, false, "removed"}, {time.Minute, true, false, "back removed"}},
		"at leisure": {{0, true, false, "removed"}, {time.Minute, false, false, ""},
			{time.Hour, true, false, "back removed"}},
		"no end of it": {{0, true, false, "removed"}, {time.Minute, true, false, "back removed"},
			{time.Minute, true, false, ""}, {time.Hour, true, false, "back removed"}},
		"it cannot be removed": {{0, true, true, "failed"}, {time.Minute, true, true, ""}, {time.Hour, true, true, "failed"},
			{time.Hour, true, false, "removed"}, {time.Minute, false, false, ""}},
		"it comes later": {{0, false, false, "removed"}, {time.Hour, true, false, "removed"},
			{time.Minute, true, false, "back removed"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := klog.NewContext(t.Context(), logr.Discard())
				var now step
				got := ""
				o := &others{
					find: func(context.Context) []string {
						if now.found {
							return []string{"nft table ip kube-proxy", "chain KUBE-SERVICES (IPv4, iptables-nft)"}
						}
						return nil
					},
					back: func(found string) {
						assert.Equal(t, "nft table ip kube-proxy, chain KUBE-SERVICES (IPv4, iptables-nft)", found)
						got += "back "
					},
					remove: func(context.Context) error {
						if now.fails {
							got += "failed"
							return errors.New("not permitted")
						}
						got += "removed"
						return nil
					},
				}
				for i, s := range steps {
					time.Sleep(s.after)
					now, got = s, ""
					o.afterSync(ctx)
					o.afterSync(ctx) // a Sync soon after it is no reason to look again
					assert.Equal(t, s.want, got, "step %d", i)
				}
			})
		})
	}
}

func TestWhatIsFoundOfKubeProxy(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t)
	assert.Empty(t, r.findUpstream(r.ctx))
	r.addUpstreamTable(t)
	assert.Equal(t, []string{"nft table ip kube-proxy"}, r.findUpstream(r.ctx))
	r.addUpstreamChains(t)
	assert.Equal(t, []string{"chain KUBE-SERVICES (IPv4, iptables-nft)", "chain KUBE-SERVICES (IPv6, iptables-nft)",
		"nft table ip kube-proxy"}, r.findUpstream(r.ctx))
}

// The rules of kube-proxy that are made again are an Event on the Node and a line in the log.
func TestAKubeProxyThatRunsBesideIsAnEvent(t *testing.T) {
	e, written := recording(t)
	r := newRig(t)
	p := &proxy{events: e}
	p.anotherKubeProxy(r.ctx, "nft table ip kube-proxy")
	assert.Contains(t, r.logged(), `have come back: it runs on this node, too. Run only one of the two"`)
	got := <-written
	assert.Equal(t, "Warning AnotherKubeProxy", got.Type+" "+got.Reason)
	assert.Contains(t, got.Note, "(nft table ip kube-proxy)")
}

// An attempt to remove the rest is made every hour, but its error is logged only when it changes.
func TestALeftoverThatStaysIsSaidOnce(t *testing.T) {
	needModesOfLinux(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.addUpstreamChains(t)
		r.jumpFrom(t, "OTHER", "KUBE-SERVICES", "KUBE-SVC-ABC")
		var failure error
		attempts := 0
		o := &others{
			find: r.findUpstream,
			back: func(found string) { t.Errorf("%s is said to have come back", found) },
			remove: func(ctx context.Context) error {
				attempts++
				return errors.Join(cleanUpUpstreamIPTables(ctx, r.machine), failure)
			},
		}
		hours := func(n int) (said string) {
			before := len(r.logged())
			for range n {
				o.afterSync(r.ctx)
				time.Sleep(time.Hour)
			}
			return r.logged()[before:]
		}
		failure = errors.New("ipset KUBE-CLUSTER-IP is in use")
		said := hours(3)
		assert.Equal(t, 1, strings.Count(said, "Could not clean up"), said)
		assert.Contains(t, said, "ipset KUBE-CLUSTER-IP")
		assert.Contains(t, said, "KUBE-SERVICES (from OTHER), KUBE-SVC-ABC (from OTHER)")
		failure = errors.New("ipset KUBE-LOOP-BACK is in use")
		assert.Equal(t, 1, strings.Count(hours(3), "Could not clean up"), "something else")
		assert.Equal(t, 6, attempts)

		// A chain to which others jump is not tried again: it is empty.
		failure = nil
		said = hours(3)
		assert.Equal(t, 1, strings.Count(said, "Chains that are no longer needed were emptied, but not deleted"), said)
		assert.NotContains(t, said, "Could not clean up")
		assert.Equal(t, 7, attempts)
	})
}
