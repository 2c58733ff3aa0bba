package benchmarks

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

func TestAGoalWithoutAFigureIsMissed(t *testing.T) {
	withGoals := 0
	for _, c := range comparisons() {
		for _, f := range []figures{{upstream: full()}, {upstream: full(), ours: {}}} {
			var out bytes.Buffer
			missed := printGoals(&out, c, f)
			assert.NotContains(t, out.String(), "holds", "%v %s", c.Size, c.mode.name)
			assert.Len(t, missed, len(c.goals()))
		}
		if len(c.goals()) > 0 {
			withGoals++
		}
	}
	assert.Equal(t, 7, withGoals, "nftables in five sizes, iptables in one")
}

// full has every figure.
func full() *report.SpeedRun {
	l := report.Latency{P50: 2, P99: 3, Count: 10, CPU: 40}
	rates := []report.Rate{{PerSecond: 10, Latency: l, Written: 10, Listing: &report.Listing{Time: 500}},
		{PerSecond: 100, Latency: l, Written: 10}, {PerSecond: 1000, Latency: l, Written: 10}}
	return &report.SpeedRun{Rates: rates, Start: 90_000, Change: l, Burst: l, Churn: l, Gap: 1, Memory: 3 << 20,
		Rest: report.Rest{Time: 35_000}}
}

func TestNoProcessorTimeAtRestIsTheBestThereIs(t *testing.T) {
	var out bytes.Buffer
	c := comparison{program.Size{Services: 5000, Endpoints: 1}, mode{}} // which has no other goal
	assert.Empty(t, printGoals(&out, c, figures{ours: full()}))
	assert.Equal(t, "goal: processor time at rest, % of a processor: at most 0.05: 0.00, holds\n", out.String())
}

// A report of an earlier judge has ten changes a second, and no other rate.
func TestFiguresOfRates(t *testing.T) {
	s := full()
	assert.InDelta(t, 4*10, share(100)(s), 1e-9, "40 ms in a tenth of a second")
	s.Rates[0].Listing.Unfinished = true
	assert.True(t, math.IsNaN(listing(s)), "it did not finish")
	s.Rates = nil
	assert.InDelta(t, 2, p50(10)(s), 0)
	for _, value := range []float64{p50(100)(s), p99(1000)(s), listing(s), share(100)(s)} {
		assert.True(t, math.IsNaN(value))
	}
}

// failures notes what a test would have failed with.
type failures []string

func (e *failures) Errorf(format string, args ...any) { *e = append(*e, fmt.Sprintf(format, args...)) }

func TestMissedGoalsAreErrorsWhereTheyAreDemanded(t *testing.T) {
	busy := full()
	busy.Rest.CPU = 1000
	c := comparison{program.Size{Services: 5000, Endpoints: 1}, mode{}}
	missed := printGoals(io.Discard, c, figures{ours: busy})
	require.Len(t, missed, 1)
	for value, want := range map[string]failures{"": nil, "0": nil, "1": failures(missed)} {
		t.Setenv(envGoals, value)
		var got failures
		demand(&got, missed)
		assert.Equal(t, want, got, value)
	}
}

func TestARowNamesFiguresAndRatios(t *testing.T) {
	c := comparison{program.Size{Services: 1000, Endpoints: 10}, mode{name: "nftables"}}
	own := full()
	own.Start, own.Change.CPU, own.Memory = 30, 0, 2<<20
	var out bytes.Buffer
	printRow(&out, c, figures{upstream: full(), ours: own})
	assert.Equal(t, "| 1000 x 10 | nftables | 90.0 s / 30 ms (3000x) | 2.0 ms / 2.0 ms (1.0x) | 3.0 ms / 3.0 ms (1.0x) | "+
		"4.0 ms / - | "+strings.Repeat("2.0 ms / 2.0 ms (1.0x) | 3.0 ms / 3.0 ms (1.0x) | ", 4)+
		"500 ms / 500 ms (1.0x) | 1.0 ms / 1.0 ms (1.0x) | "+
		"3 MiB / 2 MiB (1.5x) |\n", out.String())
	out.Reset()
	printRow(&out, c, figures{ours: own})
	assert.Contains(t, out.String(), "| - / 30 ms | - / 2.0 ms |", "upstream failed")
}

func TestAddressesGoOnAfterAByte(t *testing.T) {
	assert.Equal(t, "10.129.0.1", address("10.128.255.250", 7).String())
}

func TestAServiceHasItsEndpointsInThePodsRange(t *testing.T) {
	for _, size := range [][2]int{{10000, 10}, {1000, 10}, {100, 100}} { // of the other benchmarks
		seen := map[string]bool{}
		for _, i := range []int{0, 1, size[0] - 1} {
			assert.True(t, serviceCIDR().Contains(vip(i)))
			for _, e := range slice(i, size[1]).Endpoints {
				assert.False(t, seen[e.Addresses[0]], "two endpoints have one address")
				seen[e.Addresses[0]] = true
			}
		}
		assert.Len(t, seen, 3*size[1])
		last := address("10.128.0.0", size[0]*size[1]-1)
		assert.True(t, podCIDR().Contains(last))
		assert.True(t, last.Less(address("10.200.0.0", 0)), "those have the endpoints that replace others")
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
