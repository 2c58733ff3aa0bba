package judge

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/machine"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/simple"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/speed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// speedOf measures a program briefly, at one size.
func speedOf(t *testing.T, p program.Proxy, plan speed.Plan) report.SpeedRun {
	return speedOn(t, machineWith(func() (int, bool) { return 2, true }), p, plan)
}

// speedOn measures it on a fake machine.
func speedOn(t *testing.T, m *machine.Watch, p program.Proxy, plan speed.Plan) report.SpeedRun {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	families, err := network.Families()
	require.NoError(t, err)
	sizes := []program.Size{{Services: 3, Endpoints: 2}}
	j := &judging{Proxy: p, Options: Options{Sizes: sizes, Rates: []int{10, 250}},
		families: families, machine: m, spent: &testbed.Spending{},
		figures: &testbed.Figures{}}
	measured := j.measureSpeed(t.Context(), plan)
	require.Len(t, measured.Runs, 1)
	assert.NotEmpty(t, measured.Machine)
	return measured.Runs[0]
}

func shortPlan() speed.Plan {
	return speed.Plan{Single: 2, Burst: 100, SingleFor: time.Minute, RateFor: 20 * time.Millisecond,
		Start: 5 * time.Minute, Change: 5 * time.Minute, Quiet: time.Millisecond, QuietLimit: time.Second,
		Rest: time.Millisecond, ListAfter: time.Millisecond, Listing: time.Minute}
}

func TestSpeedIsMeasured(t *testing.T) {
	t.Parallel()
	r := speedOf(t, mutantProxy(t, ""), shortPlan())
	assert.Empty(t, r.Problem)
	assert.Equal(t, []int{3, 2, 2, 3}, []int{r.Services, r.Endpoints, r.Change.Count, r.Burst.Count})
	assert.NotZero(t, r.Churn.Count)
	assert.Equal(t, "SYNs", r.Probing)
	for _, l := range []report.Latency{r.Change, r.Burst} {
		assert.Len(t, l.Quantiles, l.Count)
		require.NotNil(t, l.Judge)
		assert.Positive(t, l.Judge.Write)
	}
	require.Len(t, r.Rates, 2)
	for i, written := range []int{1, 5} {
		rate := r.Rates[i]
		assert.Equal(t, []int{10, 250}[i], rate.PerSecond)
		assert.Equal(t, written, rate.Written)
		assert.Equal(t, 1, rate.Probed, "of 250 a second each fifth")
		assert.Equal(t, rate.Probed, rate.Count+rate.Replaced)
		assert.Nil(t, rate.Listing, "the host cannot list")
	}
	for _, figure := range []float64{r.Start, r.Change.P50, r.Burst.P99, r.Churn.P50, r.Gap, r.Rest.Time} {
		assert.Positive(t, figure)
	}
}

// A proxy for which SYNs show nothing is measured with complete connections, and a host that can list rules lists them.
func TestSpeedIsMeasuredByConnections(t *testing.T) {
	t.Parallel()
	nft := need.Program(t, "nft")
	p := mutantProxy(t, "")
	open := p.Open
	p.Open = func(ctx context.Context, env program.Node, c program.Configuration) (program.Host, error) {
		h, err := open(ctx, env, c)
		// This proxy rejects SYNs without options, which no real client sends.
		cmd := exec.CommandContext(ctx, nft, "add table netdev hide; add chain netdev hide in { type filter hook ingress "+
			"device kpl-pod1 priority 0; }; add rule netdev hide in tcp flags & (syn|ack) == syn tcp doff 5 drop")
		if out, e := cmd.CombinedOutput(); err == nil && e != nil {
			err = fmt.Errorf("%w: %s", e, out)
		}
		return &listingHost{Host: h}, err
	}
	plan := shortPlan()
	plan.Listing = 2 * time.Second
	r := speedOf(t, p, plan)
	assert.Empty(t, r.Problem)
	assert.Equal(t, "connections", r.Probing)
	assert.Equal(t, 3, r.Burst.Count)
	require.NotNil(t, r.Listing)
	assert.Equal(t, report.Listing{Command: "list", Bytes: 7, Time: r.Listing.Time}, *r.Listing)
	require.Len(t, r.Rates, 2)
	beside := r.Rates[0].Listing
	require.NotNil(t, beside)
	assert.True(t, beside.Unfinished, "it never ends beside changes")
	assert.NotZero(t, beside.Changes.Count)
	assert.Equal(t, "no rules", r.Rates[1].Listing.Problem)
}

// listingHost lists rules: quickly, not within the limit, and not at all.
type listingHost struct {
	program.Host
	called int
}

func (h *listingHost) List(ctx context.Context) (string, int64, error) {
	switch h.called++; h.called {
	case 1, 2:
		return "list", 7, nil
	case 3:
		<-ctx.Done()
		return "list", 0, ctx.Err()
	}
	return "list", 0, errors.New("no rules")
}

// Problems are recorded in the figures, together with the earlier measurements.
func TestSpeedOfBadPrograms(t *testing.T) {
	t.Parallel()
	deaf, exits := mutantProxy(t, ""), mutantProxy(t, "")
	open := deaf.Open
	deaf.Open = func(ctx context.Context, env program.Node, c program.Configuration) (program.Host, error) {
		h, err := open(ctx, env, c)
		return &deafHost{Host: h}, err
	}
	exits.Open = func(ctx context.Context, env program.Node, c program.Configuration) (program.Host, error) {
		h, err := open(ctx, env, c)
		if err == nil {
			start := h.(*mutantHost).start
			h.(*mutantHost).start = func() *exec.Cmd {
				cmd := start()
				cmd.Args = append(cmd.Args, "-no-such-flag")
				return cmd
			}
		}
		return h, err
	}
	plan := shortPlan()
	plan.Change = time.Millisecond
	r := speedOf(t, deaf, plan)
	assert.Contains(t, r.Problem, "one change: the program took too long; 1 changes do not show")
	assert.Positive(t, r.Start)
	assert.False(t, r.NotMeasured)
	busy := machineWith(func() (int, bool) { return 50, false })
	r = speedOn(t, busy, deaf, plan)
	assert.True(t, r.NotMeasured, "another program kept the machine busy")
	assert.Contains(t, r.Problem, "not measured, the machine was too busy")
	assert.Contains(t, r.Problem, "1 changes do not show")
	r = speedOf(t, exits, shortPlan())
	assert.Contains(t, r.Problem, "start: it has ended: exit status 2")
	assert.Zero(t, r.Start)
}

// deafHost writes only the first objects, and ignores later changes.
type deafHost struct {
	program.Host
	listed bool
}

func (h *deafHost) Put(ctx context.Context, set, deleted []metav1.Object) error {
	if h.listed {
		return nil
	}
	h.listed = true
	return h.Host.Put(ctx, set, deleted)
}
