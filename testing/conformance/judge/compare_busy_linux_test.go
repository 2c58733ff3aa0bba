package judge

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/simple"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// comparisonOn compares the simple backend with another program, in one cluster, on a machine with threads of others.
func comparisonOn(t *testing.T, other program.Proxy, seed uint64, others func() int) *comparison {
	t.Helper()
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	t.Parallel()
	c, err := newComparison([2]program.Proxy{mutantProxy(t, ""), other}, CompareOptions{
		Names: [2]string{"one", "other"}, Clusters: 1, Time: time.Hour, Seed: seed,
		StartTimeout: 10 * time.Minute}) // the real machine may be busy as well
	require.NoError(t, err)
	c.tries = 4
	c.machine = machineWith(func() (int, bool) { n := others(); return max(n, 2), n == 0 })
	for _, s := range c.sides {
		s.machine, s.quietTimeout = c.machine, 0
	}
	return c
}

// resultNamed returns the first result of a report whose case begins with a prefix.
func resultNamed(t *testing.T, r *report.Report, prefix string) report.Result {
	t.Helper()
	for _, result := range r.Results {
		if strings.HasPrefix(result.Case, prefix) {
			return result
		}
	}
	t.Fatalf("there is no result %q: %+v", prefix, r.Results)
	return report.Result{}
}

// What a program that cannot be configured does with packets decides the configuration of the whole run: it is observed
// on a quiet machine.
func TestAProgramBesideAnotherIsObservedOnAQuietMachine(t *testing.T) {
	other := mutantProxy(t, "")
	other.Configures = false
	var again atomic.Bool
	open := other.Open
	other.Open = func(ctx context.Context, n program.Node, c program.Configuration) (program.Host, error) {
		c.MasqueradeAll = !again.Load() // as if answers were lost
		return open(ctx, n, c)
	}
	c := comparisonOn(t, other, 1, func() int {
		if again.Load() {
			return 0
		}
		return 50
	})
	c.sides[1].Say = func(text string) {
		if strings.Contains(text, "start the program again") {
			again.Store(true)
		}
	}
	var fixed *cluster.Setup
	require.NoError(t, c.sides[0].withMachine(func() (err error) {
		fixed, err = c.fixedSetup(t.Context())
		return err
	}))
	require.NotNil(t, fixed)
	assert.True(t, again.Load())
	assert.Equal(t, cluster.Setup{}, *fixed)
}

// A program that cannot be observed on a busy machine is no failure: nothing is judged.
func TestAProgramBesideAnotherThatCannotBeObserved(t *testing.T) {
	other := withHost(mutantProxy(t, ""), func(h program.Host) program.Host { return &sleepingHost{h} })
	other.Configures = false
	c := comparisonOn(t, other, 1, func() int { return 50 })
	c.sides[1].StartTimeout = 100 * time.Millisecond
	r := c.report(c.run(t.Context()))
	assert.Empty(t, r.Problem)
	assert.Equal(t, report.NotJudged, resultNamed(t, r, "differences in 1 more clusters").Verdict)
	for _, result := range r.Results {
		assert.NotEqual(t, "the run ended early", result.Why, "%s", result.Case)
	}
}

// A program that does not start on a busy machine costs a cluster, but the clusters that were judged are still counted.
func TestClustersThatWereJudgedBesideOthersThatWereNot(t *testing.T) {
	other := mutantProxy(t, "")
	var opened atomic.Int32
	open := other.Open
	other.Open = func(ctx context.Context, n program.Node, c program.Configuration) (program.Host, error) {
		h, err := open(ctx, n, c)
		if err == nil && opened.Add(1) <= mostStarts {
			h.(*mutantHost).start = func() *exec.Cmd { return exec.Command(os.Args[0], "-no-such-flag") }
		}
		return h, err
	}
	var quiet atomic.Bool
	c := comparisonOn(t, other, 263, func() int {
		if quiet.Load() {
			return 0
		}
		return 50
	})
	c.Clusters = 2
	c.Say = func(text string) { quiet.Store(quiet.Load() || strings.HasPrefix(text, "not judged: ")) }
	r := c.report(c.run(t.Context()))
	assert.Empty(t, r.Problem)
	judged := resultNamed(t, r, "")
	assert.Contains(t, judged.Case, "flows in 2 random clusters")
	assert.Equal(t, report.Passed, judged.Verdict, judged.Why)
	assert.Equal(t, report.NotJudged, resultNamed(t, r, "differences in 1 more clusters").Verdict)
}

// Where others have merely a quarter of the processors, differences are sought once more.
func TestDifferencesOnAMachineThatOthersUse(t *testing.T) {
	c := comparisonOn(t, mutantProxy(t, simple.IgnoresAffinity), 271, func() int { return 2 })
	for _, s := range c.sides {
		s.machine = ownMachine() // a late control connection would make the machine too busy
	}
	tried := 0
	c.Say = func(text string) {
		if strings.Contains(text, "so the differences are sought again") {
			tried++
		}
	}
	r := c.report(c.run(t.Context()))
	assert.Empty(t, r.Problem)
	assert.NotEmpty(t, differences(r))
	assert.Equal(t, 1, tried)
}

// A difference that was found on a quiet machine is not reduced on a busy one: whether it can be repeated then, or with
// fewer objects, says nothing.
func TestADifferenceIsNotReducedOnABusyMachine(t *testing.T) {
	var found atomic.Bool
	c := comparisonOn(t, mutantProxy(t, simple.IgnoresAffinity), 271, func() int {
		if found.Load() {
			return 50
		}
		return 0
	})
	c.Say = func(text string) {
		if strings.HasSuffix(text, " end differently") {
			found.Store(true)
		}
	}
	r := c.report(c.run(t.Context()))
	assert.Empty(t, r.Problem)
	list := differences(r)
	require.NotEmpty(t, list)
	for _, d := range list {
		assert.Contains(t, d.Why, "not reduced, the machine was too busy")
		assert.Contains(t, d.Why, "what one does is expected")
		assert.Less(t, 2, strings.Count(d.Failures[0].Objects, "kind: Service\n"))
	}
}

// What a clean-up leaves on a busy machine is not judged either.
func TestACleanUpBesideAnotherOnABusyMachine(t *testing.T) {
	c := comparisonOn(t, mutantProxy(t, simple.LeavesATable), 25, func() int { return 50 })
	r := c.report(c.run(t.Context()))
	assert.Empty(t, r.Problem)
	assert.Equal(t, report.Passed, resultNamed(t, r, "clean-up of one").Verdict)
	left := resultNamed(t, r, "clean-up of other")
	assert.Equal(t, report.NotJudged, left.Verdict)
	assert.Contains(t, left.Why, "the machine was too busy")
}
