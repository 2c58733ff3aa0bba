package benchmarks

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPercentiles(t *testing.T) {
	values := []time.Duration{5, 1, 4, 2, 3}
	assert.Equal(t, time.Duration(3), percentile(values, 50))
	assert.Equal(t, time.Duration(5), percentile(values, 99))
	assert.Equal(t, time.Duration(1), percentile(values, 1))
	assert.Zero(t, percentile(nil, 50))
}

func TestTheProbeLeavesTheProcessorsToTheProxy(t *testing.T) {
	for _, c := range []struct {
		what     string
		asked    int
		answered bool
		since    time.Duration
		want     time.Duration
	}{
		{"another pod has answered", 1, true, 0, 0},
		{"the awaited one is one of ten, so some in a row", askInARow - 1, true, time.Second, 0},
		{"then a pause", askInARow, true, 3 * time.Millisecond, 2 * time.Millisecond},
		{"again", askInARow + 1, true, 3 * time.Millisecond, 0},
		{"and again", 2 * askInARow, true, 6 * time.Millisecond, 2 * time.Millisecond},
		{"a fiftieth of what is measured", 10 * askInARow, true, time.Second, 20 * time.Millisecond},
		{"at most", 100 * askInARow, true, time.Minute, 50 * time.Millisecond},
		{"nobody answers: it is not there yet", 1, false, 0, 2 * time.Millisecond},
		{"nor later", askInARow, false, time.Minute, 2 * time.Millisecond},
	} {
		assert.Equal(t, c.want, pause(c.asked, c.answered, c.since), c.what)
	}
}

func TestTheMeanIsOfWhatWasMeasured(t *testing.T) {
	rounds := []*result{{all: time.Second}, {}, {all: 3 * time.Second}}
	assert.InDelta(t, 2000, mean(rounds, untilAll), 0)
	assert.True(t, math.IsNaN(mean(rounds, p50)))
	rounds[0].ownKiB, rounds[0].childKiB, rounds[2].ownKiB = 1, 2<<10, 1
	assert.InDelta(t, 1, mean(rounds, biggestChild), 0, "no child is a figure, but only of a round that there was")
}

func TestAGoalWithoutAFigureIsMissed(t *testing.T) {
	full := result{
		first: time.Second, all: time.Second, changes: []time.Duration{time.Second}, changeCPU: time.Second, ownKiB: 1,
		childKiB:     1,
		idleMeasured: true, idleCPU: time.Millisecond, rules: 1, fastest: time.Millisecond, slowest: time.Millisecond,
	}
	withGoals := 0
	for _, c := range comparisons() {
		var out bytes.Buffer
		missed := printGoals(&out, c, map[string][]*result{upstream: {&full}, ours: {{}}})
		assert.NotContains(t, out.String(), "holds", "%s %s", c.shape(), c.mode.name)
		assert.Len(t, missed, len(c.goals()))
		if len(c.goals()) > 0 {
			withGoals++
		}
	}
	assert.Equal(t, 7, withGoals, "nftables in five shapes, iptables in one")
}

func TestNoProcessorTimeAtRestIsTheBestThereIs(t *testing.T) {
	var out bytes.Buffer
	c := comparison{services: 2, atRest: true} // of a shape that has no other goal
	results := map[string][]*result{ours: {{idleMeasured: true}, {}}}
	assert.Empty(t, printGoals(&out, c, results))
	assert.Equal(t, "goal: processor time at rest, % of a processor: at most 0.05: 0.00, holds\n", out.String())
	out.Reset()
	printTable(&out, c, "v1", results)
	assert.Contains(t, out.String(), "0 ticks, 0.0 ms")
}

// failures notes what a test would have failed with.
type failures []string

func (e *failures) Errorf(format string, args ...any) { *e = append(*e, fmt.Sprintf(format, args...)) }

func TestMissedGoalsAreErrorsWhereTheyAreDemanded(t *testing.T) {
	c := comparison{services: 2, atRest: true}
	missed := printTable(io.Discard, c, "v1", map[string][]*result{ours: {{idleMeasured: true, idleCPU: time.Minute}}})
	require.Len(t, missed, 1)
	for value, want := range map[string]failures{"": nil, "0": nil, "1": failures(missed)} {
		t.Setenv(envGoals, value)
		var got failures
		demand(&got, missed)
		assert.Equal(t, want, got, value)
	}
}

func TestTheSummaryNamesFiguresAndRatios(t *testing.T) {
	var out bytes.Buffer
	c := comparison{services: 1000, endpoints: 10, mode: mode{name: "nftables"}}
	s := &summary{title: "v1"}
	s.print(&out)
	assert.Empty(t, out.String(), "nothing was measured")
	s.add(&out, c, map[string][]*result{upstream: {{all: 90 * time.Second}}, ours: {{all: 30 * time.Millisecond}}})
	row := "| 1000 x 10 | nftables | 90.0 s / 30 ms (3000x) | - / - |"
	assert.Contains(t, out.String(), row, "at once")
	out.Reset()
	s.print(&out)
	assert.Contains(t, out.String(), "v1\n\n| services x endpoints |")
	assert.Contains(t, out.String(), row, "and at the end")
}

func TestAStartThatTakesTooLongIsAResult(t *testing.T) {
	var out bytes.Buffer
	c := comparison{services: 44000, endpoints: 1, rounds: 1, mode: mode{name: "nftables", proxyMode: "nftables"}}
	results := map[string][]*result{
		upstream: {{startLimit: 300 * time.Second, ownKiB: 3 << 10}},
		ours:     {{all: 3 * time.Second, ownKiB: 1 << 10, changes: []time.Duration{time.Second}}},
	}
	(&summary{}).add(&out, c, results)
	assert.Contains(t, out.String(), "| 44000 x 1 | nftables | > 300 s / 3.0 s (> 100x) | - / 1.0 s | - / - |")
	assert.Contains(t, out.String(), " 3 MiB / 1 MiB (3.0x) |")
	out.Reset()
	assert.Empty(t, printTable(&out, c, "v1", results), "the limit is enough for the goal")
	assert.Contains(t, out.String(), "upstream, round 1: not every service could be reached within 5m0s\n")

	err := fmt.Errorf("start: %w", &startTooLate{time.Second, errDeadline})
	var late *startTooLate
	require.ErrorAs(t, err, &late)
	require.ErrorIs(t, err, errDeadline)
}

func TestTheTitleDescribesTheMachine(t *testing.T) {
	assert.Regexp(t, `^kube-proxy v1 / kube-proxy-lib \(ratio\), \d{4}-\d\d-\d\d, \d+ x .+, Linux \d+\..*, `+
		`nft (\d+\.\d.*|missing), iptables (\d+\.\d.*|missing), load average \d+\.\d+ at the beginning$`, title("v1"))
	assert.Equal(t, "?", firstWord("/nothing/here"))
	assert.Equal(t, "missing", programVersion("no-such-program"))
}

func TestAddressesGoOnAfterAByte(t *testing.T) {
	assert.Equal(t, "10.129.0.1", address("10.128.255.250", 7).String())
}

func TestAServiceHasItsEndpointsInThePodsRange(t *testing.T) {
	for _, c := range comparisons() {
		seen := map[string]bool{}
		for _, i := range []int{0, 1, c.services - 1} {
			assert.True(t, serviceCIDR().Contains(vip(i)))
			for _, e := range slice(i, c.endpoints).Endpoints {
				assert.False(t, seen[e.Addresses[0]], "two endpoints have one address")
				seen[e.Addresses[0]] = true
			}
		}
		assert.Len(t, seen, 3*c.endpoints)
		last := address("10.128.0.0", c.services*c.endpoints-1)
		assert.True(t, podCIDR().Contains(last))
		assert.True(t, last.Less(address("10.200.0.0", 0)), "those have the endpoints that replace others")
		assert.False(t, podCIDR().Contains(vip(c.services-1)))
	}
}

func TestTheClusterOnlyGrows(t *testing.T) {
	services := 0
	for _, c := range comparisons() {
		assert.GreaterOrEqual(t, c.services, services)
		services = c.services
	}
}

func TestProcessorTimeIncludesChildrenThatHaveEnded(t *testing.T) {
	before, err := processorTime(os.Getpid())
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done")
	require.NoError(t, cmd.Run())
	used := cmd.ProcessState.SystemTime() + cmd.ProcessState.UserTime()
	require.GreaterOrEqual(t, used, 5*clockTick, "the child was too quick to tell")
	after, err := processorTime(os.Getpid())
	require.NoError(t, err)
	assert.GreaterOrEqual(t, after-before, used-2*clockTick, "time of its own and the system's are each rounded down")
}

func TestThePeakIsThatOfTheProcessAndOfItsBiggestChild(t *testing.T) {
	p := watchPeak(os.Getpid())
	defer p.stop()
	cmd := exec.CommandContext(t.Context(), "cat") // lasts until its input ends
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() {
		_ = in.Close()
		_ = cmd.Wait()
	}()
	require.Eventually(t, func() bool {
		_, child := p.kib()
		return child > 0
	}, 10*time.Second, 10*time.Millisecond)
	own, child := p.kib()
	assert.Greater(t, own, child)
	assert.Less(t, child, 10<<10, "the child has its own memory, not that of its parent")
	assert.True(t, p.hasChild())
	id, err := childNamed(os.Getpid(), "cat")
	require.NoError(t, err)
	assert.Equal(t, cmd.Process.Pid, id)

	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	require.Eventually(t, func() bool { return !p.hasChild() }, time.Minute, 10*time.Millisecond)
	_, after := p.kib()
	assert.GreaterOrEqual(t, after, child, "a peak stays")
	_, err = childNamed(os.Getpid(), "cat")
	require.Error(t, err)
}

func TestTheControlPlaneIsAwaited(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
	require.NoError(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	c := controlPlane{cmd.Process.Pid}
	settled, err := c.settle(0)
	require.NoError(t, err)
	assert.False(t, settled, "it works all the time")

	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	settled, err = c.settle(time.Minute)
	require.NoError(t, err)
	assert.True(t, settled)

	_, err = controlPlane{os.Getpid(), -1}.settle(time.Minute)
	require.Error(t, err, "it has ended")
}

func TestTheProxiesTakeTurnsAndTheTableSaysSo(t *testing.T) {
	assert.Equal(t, []string{upstream, ours}, order(0))
	assert.Equal(t, []string{ours, upstream}, order(1))
	assert.Equal(t, order(0), order(2))
	var out bytes.Buffer
	printTable(&out, comparison{rounds: 1}, "v1", nil)
	assert.Contains(t, out.String(), "One round only, upstream first\n")
	out.Reset()
	printTable(&out, comparison{rounds: 2}, "v1", map[string][]*result{ours: {{unsettled: true}}})
	assert.Contains(t, out.String(),
		"mean of 2 rounds, first in turn: upstream, kube-proxy-lib; all else: one round, upstream first\n")
	assert.Contains(t, out.String(), "kube-proxy-lib, round 1: the control plane did not come to rest")
}
