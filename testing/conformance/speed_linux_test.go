package conformance

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// speedOf measures a program briefly, at one size.
func speedOf(t *testing.T, p Proxy, plan speedPlan) report.SpeedRun {
	need.Program(t, "nft")
	needNetwork(t)
	families, err := network.Families()
	require.NoError(t, err)
	j := &judging{Proxy: p, JudgeOptions: JudgeOptions{Sizes: []Size{{Services: 3, Endpoints: 2}}}, families: families,
		figures: &figures{}}
	speed := j.measureSpeed(t.Context(), plan)
	require.Len(t, speed.Runs, 1)
	assert.NotEmpty(t, speed.Machine)
	return speed.Runs[0]
}

func shortSpeedPlan() speedPlan {
	return speedPlan{single: 2, burst: 100, churn: 5, singleFor: time.Minute, churnEvery: time.Millisecond,
		start: 5 * time.Minute, change: 5 * time.Minute, quiet: time.Millisecond, quietLimit: time.Second, rest: time.Millisecond}
}

func TestSpeedIsMeasured(t *testing.T) {
	t.Parallel()
	r := speedOf(t, mutantProxy(t, ""), shortSpeedPlan())
	assert.Empty(t, r.Problem)
	assert.Equal(t, []int{3, 2, 2, 3}, []int{r.Services, r.Endpoints, r.Change.Count, r.Burst.Count})
	assert.NotZero(t, r.Churn.Count)
	for _, figure := range []float64{r.Start, r.Change.P50, r.Burst.P99, r.Churn.P50, r.Gap, r.Rest.Time} {
		assert.Positive(t, figure)
	}
}

// What goes wrong is in the figures, with those that were taken before.
func TestSpeedOfBadPrograms(t *testing.T) {
	t.Parallel()
	deaf, exits := mutantProxy(t, ""), mutantProxy(t, "")
	open := deaf.Open
	deaf.Open = func(ctx context.Context, env Env, c Configuration) (Host, error) {
		h, err := open(ctx, env, c)
		return &deafHost{Host: h}, err
	}
	exits.Open = func(ctx context.Context, env Env, c Configuration) (Host, error) {
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
	plan := shortSpeedPlan()
	plan.change = time.Millisecond
	r := speedOf(t, deaf, plan)
	assert.Contains(t, r.Problem, "one change: the program took too long; 1 changes do not show")
	assert.Positive(t, r.Start)
	r = speedOf(t, exits, shortSpeedPlan())
	assert.Contains(t, r.Problem, "start: it has ended: exit status 2")
	assert.Zero(t, r.Start)
}

// deafHost tells a program nothing but what there is at first.
type deafHost struct {
	Host
	told bool
}

func (h *deafHost) Put(ctx context.Context, set, deleted []metav1.Object) error {
	if h.told {
		return nil
	}
	h.told = true
	return h.Host.Put(ctx, set, deleted)
}
