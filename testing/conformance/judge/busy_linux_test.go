package judge

import (
	"context"
	"errors"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/machine"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/simple"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// machineWith is a machine with two processors that are busy all the time, with as many threads. Ours tells whether
// they are the program's; it then counts as twice as much, so that no pause between two readings of a busy test looks
// like another program.
func machineWith(threads func() (n int, ours bool)) *machine.Watch {
	began := time.Now()
	var mu sync.Mutex
	var own, last time.Duration
	now := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		passed := 2 * time.Since(began)
		if _, ours := threads(); ours {
			own += 2 * (passed - last)
		}
		last = passed
		return passed
	}
	return machine.New(machine.Source{Processors: 2, Load: func() float64 { return 0 },
		Counters: func() machine.Reading {
			n, _ := threads()
			return machine.Reading{All: now(), Busy: now(), Runnable: n}
		},
		Ours: func() time.Duration {
			now()
			mu.Lock()
			defer mu.Unlock()
			return own
		}})
}

// A wrong result on a machine that other programs kept busy is tried again, and in the end not judged. A program that
// keeps the machine busy itself is judged.
func TestABusyMachine(t *testing.T) {
	need.Program(t, "nft")
	t.Parallel()
	simple.NeedNetwork(t)
	const judged = "no new connection is lost while the backend restarts"
	for _, tc := range []struct {
		name    string
		mutant  simple.Mutant
		threads func(tried bool) (n int, ours bool)
		want    report.Verdict
		again   int
		once    bool // only until a new try
	}{
		{"other programs keep it busy", simple.FlushesOnStart, func(bool) (int, bool) { return 50, false },
			report.NotJudged, 2, false},
		{"they end", simple.FlushesOnStart, func(tried bool) (int, bool) {
			if tried {
				return 2, false
			}
			return 50, false
		}, report.Failed, 1, false},
		{"the program keeps it busy", simple.FlushesOnStart, func(bool) (int, bool) { return 50, true }, report.Failed, 0,
			false},
		{"other programs use it", simple.FlushesOnStart, func(bool) (int, bool) { return 2, false }, report.Failed, 1, false},
		{"other programs use it, and it was by chance", simple.FlushesOnStart, func(bool) (int, bool) { return 2, false },
			report.Passed, 1, true},
		{"it is quiet", simple.FlushesOnStart, func(bool) (int, bool) { return 2, true }, report.Failed, 0, false},
		{"a right result is right", "", func(bool) (int, bool) { return 50, false }, report.Passed, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var tried atomic.Bool
			again := 0
			p, right := mutantProxy(t, tc.mutant), mutantProxy(t, "")
			open := p.Open
			p.Open = func(ctx context.Context, n program.Node, c program.Configuration) (program.Host, error) {
				if tc.once && tried.Load() {
					return right.Open(ctx, n, c)
				}
				return open(ctx, n, c)
			}
			j, err := newJudging(p, Options{Lanes: 1, Seed: 1,
				Run: regexp.MustCompile("^" + judged + "$"), Say: func(text string) {
					if strings.Contains(text, "so it is tried again") {
						again++
						tried.Store(true)
					}
				}})
			require.NoError(t, err)
			j.machine, j.quietTimeout = machineWith(func() (int, bool) { return tc.threads(tried.Load()) }), 0
			r, err := j.judge(t.Context())
			require.NoError(t, err)
			for _, result := range r.Results {
				if result.Case == judged {
					assert.Equal(t, tc.want, result.Verdict, "%s %+v", result.Why, result.Failures)
				}
			}
			assert.Equal(t, tc.again, again)
			assert.Empty(t, r.Problem)
			assert.NotNil(t, r.Machine)
		})
	}
}

// A program that does not become ready on a busy machine is not judged at all.
func TestAProgramThatDoesNotStartOnABusyMachine(t *testing.T) {
	simple.NeedNetwork(t)
	t.Parallel()
	sleeps := withHost(mutantProxy(t, ""), func(h program.Host) program.Host { return &sleepingHost{h} })
	for name, busy := range map[string]bool{"busy": true, "quiet": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, err := newJudging(sleeps, Options{Lanes: 1, Seed: 1, StartTimeout: 100 * time.Millisecond,
				Run: regexp.MustCompile("^a single endpoint")})
			require.NoError(t, err)
			j.machine = machineWith(func() (int, bool) {
				if busy {
					return 50, false
				}
				return 2, false
			})
			j.quietTimeout = 0
			r, err := j.judge(t.Context())
			require.NoError(t, err)
			assert.Equal(t, busy, r.Problem == "", r.Problem)
			count := r.Counts(report.Core)
			assert.Equal(t, busy, count.NotJudged == 1, "%v", count)
			assert.Zero(t, count.Failed)
		})
	}
}

// A refusal of the API server does not depend on the load of the machine.
func TestARefusalOnABusyMachine(t *testing.T) {
	simple.NeedNetwork(t)
	refusing := withHost(mutantProxy(t, ""), func(h program.Host) program.Host { return &refusingHost{h} })
	j, err := newJudging(refusing, Options{Lanes: 1, Seed: 1, Run: regexp.MustCompile("^a single endpoint")})
	require.NoError(t, err)
	j.machine, j.quietTimeout = machineWith(func() (int, bool) { return 50, false }), 0
	_, err = j.judge(t.Context())
	assert.ErrorContains(t, err, "the API server refuses Service judge: quota")
}

// sleepingHost never starts its program.
type sleepingHost struct{ program.Host }

func (h *sleepingHost) Start(context.Context) error { return nil }

// On a busy machine an answer that must not come may be late.
func TestSilenceIsWaitedForOnABusyMachine(t *testing.T) {
	for _, threads := range []int{2, 50} {
		synctest.Test(t, func(t *testing.T) {
			j := &judging{machine: machineWith(func() (int, bool) { return threads, false })}
			time.Sleep(time.Second)
			require.Equal(t, threads == 50, j.machine.Busy(time.Now().Add(-time.Second)) != "")
			var waits time.Duration
			j.slowly(func(_ network.Attempt, p network.Timeouts) network.Seen {
				waits = p.Quiet
				return network.Seen{}
			})(network.Attempt{}, network.Timeouts{Answer: 2 * time.Second, Quiet: 100 * time.Millisecond})
			assert.Equal(t, threads == 50, waits == 2*time.Second)
		})
	}
}

// A node that drops everything is no busy machine: control connections pass it by.
func TestControlsPassTheNodeBy(t *testing.T) {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	families, err := network.Families()
	require.NoError(t, err)
	n, err := network.New(families, 1)
	require.NoError(t, err)
	defer n.Close()
	require.NoError(t, n.Node.Do(func() error {
		path, _ := need.Find("nft")
		return exec.Command(path, "add table inet x; "+
			"add chain inet x f { type filter hook forward priority 0; policy drop; }; "+
			"add chain inet x i { type filter hook input priority 0; policy drop; }").Run()
	}))
	timeouts := network.Timeouts{Answer: 10 * time.Second}
	from, to := network.HostNamed(network.LocalPod1), network.HostNamed(network.RemotePod1).ServerAt(families[0])
	blocked := n.Try(from.FlowTo(to, model.TCP, "a pod"), network.Timeouts{Answer: 50 * time.Millisecond})
	assert.Empty(t, blocked.Endpoint, "the node drops everything")
	c := n.NewControl(1)
	for range 4 * len(families) {
		assert.True(t, c.Try(timeouts))
	}
}

// If a program's rules cannot be removed, that is not a failure of the program, and is found out once.
func TestRulesThatCannotBeRemoved(t *testing.T) {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	t.Parallel()
	var tried atomic.Int32
	p := withHost(mutantProxy(t, ""), func(h program.Host) program.Host { return &unbrokenHost{h, &tried} })
	r, err := Run(t.Context(), p, Options{Lanes: 1, Seed: 1, Run: regexp.MustCompile("^rules that somebody else")})
	require.NoError(t, err)
	var reasons []string
	for _, result := range r.Results {
		if strings.HasPrefix(result.Case, "rules that somebody else") {
			assert.Equal(t, report.NotRun, result.Verdict)
			assert.True(t, result.Interrupted)
			reasons = append(reasons, result.Why)
		}
	}
	assert.ElementsMatch(t, []string{"its rules cannot be removed, so that it could repair them: break: no such table",
		"its rules cannot be removed, as another case has shown"}, reasons)
	assert.EqualValues(t, 1, tried.Load())
}

// unbrokenHost fails to remove rules.
type unbrokenHost struct {
	program.Host
	tried *atomic.Int32
}

func (h *unbrokenHost) Break(context.Context) error {
	h.tried.Add(1)
	return errors.New("no such table")
}
