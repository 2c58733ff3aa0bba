package judge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/machine"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/simple"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Mutants that cannot be tested as programs, because a Sync is not visible from outside, or because their faults need a
// longer run.
func notPrograms() []simple.Mutant {
	return []simple.Mutant{simple.AppliesAtOnce, simple.ForgetsFailures}
}

// judgedMutants are the mutants that each change has to catch as programs: one of traffic, of a restart and of what is
// left behind, and the right backend.
func judgedMutants() []simple.Mutant {
	return []simple.Mutant{"", simple.RejectsInsteadOfDrops, simple.FlushesOnStart, simple.LeavesATable}
}

// judgePatiently is Run as on a slow machine, where right results take longer to look right. It leaves the
// environment alone, so that other tests can run beside it.
func judgePatiently(ctx context.Context, p program.Proxy, o Options) (*report.Report, error) {
	j, err := newJudging(p, o)
	if err != nil {
		return nil, err
	}
	j.timeouts = testbed.DefaultTimeouts().Times(5)
	return j.judge(ctx)
}

// ownMachine is a machine that the program keeps busy, and nobody else.
func ownMachine() *machine.Watch { return machineWith(func() (int, bool) { return 50, true }) }

// judgeAlone is Run as on a machine that the program keeps busy, and nobody else. A program is not excused by its own
// load, so the verdicts are those of a quiet machine, whatever runs beside the test.
func judgeAlone(ctx context.Context, p program.Proxy, o Options) (*report.Report, error) {
	j, err := newJudging(p, o)
	if err != nil {
		return nil, err
	}
	j.machine = ownMachine()
	return j.judge(ctx)
}

// Every mutant is caught also as a program, which reads its objects from an API server.
func TestTheJudgeCatchesMutants(t *testing.T) {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	t.Parallel()
	for _, m := range append(slices.Sorted(maps.Keys(simple.MustCatch)), "") {
		if slices.Contains(notPrograms(), m) {
			continue
		}
		t.Run(string(m), func(t *testing.T) {
			if !slices.Contains(judgedMutants(), m) {
				need.Deep(t)
			}
			simple.NeedPrograms(t, m)
			t.Parallel()
			run := judgeAlone
			if m == "" {
				run = judgePatiently // right results must look right on a busy machine
			}
			catchers := slices.Collect(maps.Keys(simple.MustCatch[m]))
			if m == "" {
				catchers = []string{"a cluster IP leads to all endpoints, of this node and others",
					"endpoints come and go", "no new connection is lost while the backend restarts",
					"rules that somebody else removed come back",
					"clean-up leaves nothing, and touches nothing of others"}
			}
			var names []string
			for _, name := range catchers {
				names = append(names, regexp.QuoteMeta(name))
			}
			r, err := run(t.Context(), mutantProxy(t, m), Options{Lanes: 1, Seed: 1,
				Run: regexp.MustCompile("^(" + strings.Join(names, "|") + ")$")})
			require.NoError(t, err)
			tried := 0
			for _, result := range r.Results {
				if !slices.Contains(catchers, result.Case) || simple.CaseNamed(t, result.Case).Stepwise {
					continue
				}
				tried++
				if m == "" {
					assert.Contains(t, []report.Verdict{report.Passed, report.Slow}, result.Verdict, "%s: %+v", result.Case,
						result.Failures)
					continue
				}
				assert.True(t, r.Problem != "" || slices.Contains([]report.Verdict{report.Failed, report.Unsupported},
					result.Verdict), "not caught by %q: %s %s", result.Case, result.Verdict, result.Why)
			}
			assert.NotZero(t, tried)
			if m == "" {
				assert.Empty(t, r.Problem)
			}
		})
	}
}

// mutantProxy is the simple backend, or a mutant, as a program.
func mutantProxy(t *testing.T, m simple.Mutant) program.Proxy {
	return program.Proxy{Configures: true, Cleans: true, Breaks: true, Outages: true,
		Open: func(_ context.Context, n program.Node, c program.Configuration) (program.Host, error) {
			api, err := apiserver.New()
			if err != nil {
				return nil, err
			}
			listener, err := net.Listen("tcp", "127.0.0.1:6443")
			if err != nil {
				return nil, err
			}
			h := &mutantHost{api: api, factory: simple.Factory(m)}
			h.serve(listener, api)
			set, err := setupFor(c, n.Families)
			if err != nil {
				return nil, err
			}
			h.env = set.Env(n.Families)
			h.start = func() *exec.Cmd {
				order, _ := json.Marshal([]any{m, listener.Addr().String(), set.Detector, set.NodePorts, set.MasqueradeAll,
					n.Families})
				cmd := simple.Child(context.Background(), "TestChildProxy")
				cmd.Env = append(cmd.Env, "KPL_CONFORMANCE_PROXY="+string(order))
				cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				return cmd
			}
			return h, nil
		}}
}

// withHost returns a proxy whose hosts are wrapped by wrap.
func withHost(p program.Proxy, wrap func(program.Host) program.Host) program.Proxy {
	open := p.Open
	p.Open = func(ctx context.Context, env program.Node, c program.Configuration) (program.Host, error) {
		h, err := open(ctx, env, c)
		if err != nil {
			return nil, err
		}
		return wrap(h), nil
	}
	return p
}

// setupFor finds the setup that a configuration comes from.
func setupFor(c program.Configuration, families []model.Family) (cluster.Setup, error) {
	for d := cluster.ByNodeCIDR; d <= cluster.Undetected; d++ {
		for n := cluster.OnNodeIPs; n <= cluster.OnLoopbackByProxy; n++ {
			for _, all := range []bool{false, true} {
				s := cluster.Setup{Detector: d, NodePorts: n, MasqueradeAll: all}
				if reflect.DeepEqual(configurationOf(s, families), c) {
					return s, nil
				}
			}
		}
	}
	return cluster.Setup{}, fmt.Errorf("no setup is configured like this: %+v", c)
}

// TestChildProxy is a complete proxy.
func TestChildProxy(t *testing.T) {
	simple.ChildOnly(t)
	var m simple.Mutant
	var server string
	var set cluster.Setup
	var families []model.Family
	require.NoError(t, json.Unmarshal([]byte(os.Getenv("KPL_CONFORMANCE_PROXY")),
		&[]any{&m, &server, &set.Detector, &set.NodePorts, &set.MasqueradeAll, &families}))
	ctx, cancel := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer cancel()
	env := set.Env(families)
	env.ID = "judge"
	var err error
	env.NetNS, err = os.Open("/proc/self/ns/net")
	require.NoError(t, err)
	backend, err := simple.Factory(m).New(ctx, env)
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://" + server})
	require.NoError(t, err)
	source, err := watch.NewClientset(client, watch.ClientsetOptions{})
	require.NoError(t, err)
	feed := &kubeproxy.LocalFeed{Source: source, State: set.Localstate(families)}
	err = kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: backend, ResyncInterval: 5 * time.Second})
	if ctx.Err() == nil {
		t.Fatal(err)
	}
}

// mutantHost is the node of such a program.
type mutantHost struct {
	api     *apiserver.Server
	server  *http.Server
	factory backend.Factory
	env     backend.Env
	start   func() *exec.Cmd

	cmd    *exec.Cmd
	ended  chan struct{}
	err    error
	output lockedBuilder
}

func (h *mutantHost) Put(_ context.Context, set, deleted []metav1.Object) error {
	return errors.Join(h.api.Set(set...), h.api.Delete(deleted...))
}

func (h *mutantHost) serve(listener net.Listener, handler http.Handler) {
	h.server = &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func(s *http.Server) { _ = s.Serve(listener) }(h.server)
}

func (h *mutantHost) Away(context.Context) error { return h.server.Close() }

func (h *mutantHost) Back(_ context.Context, r program.Return) error {
	var handler http.Handler = h.api
	switch r {
	case program.HistoryGone:
		h.api.Compact()
	case program.LowerVersions:
		h.api.Restore()
	case program.Silent:
		handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:6443")
	if err == nil {
		h.serve(listener, handler)
	}
	return err
}

func (h *mutantHost) Start(context.Context) error {
	cmd, ended := h.start(), make(chan struct{})
	cmd.Stdout, cmd.Stderr = &h.output, &h.output
	if err := cmd.Start(); err != nil {
		return err
	}
	h.cmd, h.ended = cmd, ended
	go func() {
		h.err = cmd.Wait()
		close(ended)
	}()
	return nil
}

func (h *mutantHost) Ended() <-chan struct{} { return h.ended }

func (h *mutantHost) Failure() error {
	return fmt.Errorf("it has ended: %w\n%s", h.err, h.output.String())
}

func (h *mutantHost) Stop(context.Context) error {
	if h.cmd == nil {
		return nil
	}
	_ = h.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-h.ended:
	case <-time.After(time.Minute):
		_ = h.cmd.Process.Kill()
		<-h.ended
	}
	h.cmd, h.ended = nil, nil
	return nil
}

func (h *mutantHost) Cleanup(ctx context.Context) error        { return h.factory.Cleanup(ctx, h.env) }
func (h *mutantHost) Break(ctx context.Context) error          { return h.factory.Break(ctx, h.env) }
func (h *mutantHost) Dump(ctx context.Context) (string, error) { return h.factory.Dump(ctx, h.env) }
func (h *mutantHost) Usage() (time.Duration, int64)            { return 0, 0 }
func (h *mutantHost) Requests() string                         { return fmt.Sprint(h.api.Requests()) }

func (h *mutantHost) Close() {
	_ = h.Stop(context.Background())
	_ = h.server.Close()
}

// lockedBuilder is a text that can be read while it is written.
type lockedBuilder struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuilder) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuilder) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A lacking extended feature is not a failure; a partly working one is.
func TestAnAbsentFeatureIsNoFailure(t *testing.T) {
	of := func(p report.Profile, feature string, v report.Verdict) report.Result {
		return report.Result{Profile: p, Feature: feature, Verdict: v}
	}
	list := []report.Result{
		of(report.Extended, "none", report.Failed), of(report.Extended, "none", report.NotRun),
		of(report.Extended, "half", report.Failed), of(report.Extended, "half", report.Slow),
		of(report.Core, "", report.Failed), of(report.Note, "", report.Failed)}
	(&report.Report{Results: list}).Absent()
	var verdicts []report.Verdict
	for _, r := range list {
		verdicts = append(verdicts, r.Verdict)
	}
	assert.Equal(t, []report.Verdict{report.Unsupported, report.NotRun, report.Failed, report.Slow, report.Failed,
		report.Failed}, verdicts)
}

// A cancelled run reports every case, including the one that was running.
func TestARunThatEndsEarlyReportsAllCases(t *testing.T) {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var judged atomic.Bool
	p := withHost(mutantProxy(t, ""), func(h program.Host) program.Host {
		return &endingHost{Host: h, end: func() {
			if judged.Load() {
				cancel()
			}
		}}
	})
	names := []string{"an unready endpoint gets nothing", "a single endpoint gets all the traffic",
		"a pod that reaches itself through a service is masqueraded"}
	r, err := Run(ctx, p, Options{Lanes: 1, Seed: 1,
		Run: regexp.MustCompile("^(" + strings.Join(names, "|") + ")$"),
		Progress: func(r report.Result, _ int) {
			if r.Verdict != report.NotRun {
				judged.Store(true)
			}
		}})
	require.ErrorIs(t, err, context.Canceled)
	early := 0
	var reported []string
	for _, r := range r.Results {
		if slices.Contains(names, r.Case) {
			reported = append(reported, r.Case)
			if r.Why == endedEarly {
				assert.Equal(t, report.NotRun, r.Verdict, r.Case)
				early++
			}
		}
	}
	assert.ElementsMatch(t, names, reported)
	assert.Equal(t, 2, early, "one case was judged, the next one had begun")
}

// If nothing can be tried, there is no verdict about the program.
func TestNothingCanBeTried(t *testing.T) {
	simple.NeedNetwork(t)
	one := Options{Lanes: 1, Seed: 1, Run: regexp.MustCompile("^a single endpoint gets all the traffic$")}
	broken := program.Proxy{Configures: true, Open: func(context.Context, program.Node,
		program.Configuration) (program.Host, error) {
		return nil, errors.New("no space left on device")
	}}
	refusing := withHost(mutantProxy(t, ""), func(h program.Host) program.Host { return &refusingHost{h} })
	for want, tc := range map[string]struct {
		proxy   program.Proxy
		options Options
	}{
		"prepare the program: no space left on device": {broken, one},
		"the API server refuses Service judge: quota":  {refusing, one},
		`none is selected by the pattern "no such"`:    {broken, Options{Run: regexp.MustCompile("no such")}},
		"there is no command that cleans up":           {broken, Options{Run: regexp.MustCompile("clean-up leaves")}},
	} {
		r, err := Run(t.Context(), tc.proxy, tc.options)
		assert.Nil(t, r, want)
		assert.ErrorContains(t, err, want)
	}
}

// refusingHost has an API server that rejects every object.
type refusingHost struct{ program.Host }

func (h *refusingHost) Put(context.Context, []metav1.Object, []metav1.Object) error {
	return &program.RefusedError{Object: "Service judge", Reason: "quota"}
}

// endingHost calls end before it writes to the API server.
type endingHost struct {
	program.Host
	end func()
}

func (h *endingHost) Put(ctx context.Context, set, deleted []metav1.Object) error {
	h.end()
	return h.Host.Put(ctx, set, deleted)
}

// A slow program may apply the probe before anything else.
func TestASlowProgramComesToTheEndOfAChange(t *testing.T) {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	t.Parallel()
	p := withHost(mutantProxy(t, ""), func(h program.Host) program.Host { return &lateHost{Host: h} })
	judged := simple.CaseNamed(t, "traffic policies change").Name
	r, err := judgePatiently(t.Context(), p, Options{Lanes: 1, Seed: 1,
		Run: regexp.MustCompile("^" + judged + "$")})
	require.NoError(t, err)
	for _, result := range r.Results {
		if result.Case == judged {
			// with one probe it would have failed: lateHost would not have written the changes
			assert.Contains(t, []report.Verdict{report.Passed, report.Slow}, result.Verdict, "%+v", result)
		}
	}
}

// lateHost starts its program slowly. It writes changes made during the start together with the second probe.
type lateHost struct {
	program.Host
	running      bool
	probes       int
	set, deleted []metav1.Object
}

func (h *lateHost) Start(ctx context.Context) error {
	time.Sleep(testbed.SlowStart)
	h.running = true
	return h.Host.Start(ctx)
}

func (h *lateHost) Put(ctx context.Context, set, deleted []metav1.Object) error {
	switch probe := len(set) > 0 && strings.HasPrefix(set[0].GetName(), "judge-"); {
	case !h.running:
	case !probe:
		h.probes, h.set, h.deleted = 0, append(h.set, set...), append(h.deleted, deleted...)
		return nil
	default:
		if h.probes++; h.probes == 2 {
			set, deleted = append(h.set, set...), append(h.deleted, deleted...)
			h.set, h.deleted = nil, nil
		}
	}
	return h.Host.Put(ctx, set, deleted)
}

// A program mostly waits before it connects to its API server again: these cases run beside the others.
func TestOutagesHaveLanesOfTheirOwn(t *testing.T) {
	isOutage := func(c cases.Case) bool { return c.Outage }
	outages, others := cases.ForPrograms(), cases.ForPrograms()
	outages = slices.DeleteFunc(outages, func(c cases.Case) bool { return !isOutage(c) })
	others = slices.DeleteFunc(others, isOutage)
	j := &judging{Options: Options{Lanes: 2}, queue: slices.Concat(cases.All()[:3], outages, others[:1])}
	lanes := slices.Repeat([]laneKind{outagesOnly}, len(outages))
	assert.Equal(t, slices.Concat([]laneKind{noOutages, noOutages}, lanes), j.lanes())
	taken := func(k laneKind) (names []string) {
		for {
			c, ok := j.next(k, &cluster.Setup{})
			if !ok {
				return names
			}
			names = append(names, c.Name)
		}
	}
	assert.Len(t, taken(outagesOnly), len(outages))
	assert.Equal(t, []laneKind{noOutages, noOutages}, j.lanes())
	assert.Len(t, taken(noOutages), 4)
	j.queue = outages
	assert.Equal(t, lanes, j.lanes(), "others are not selected")
	j.Lanes = 1
	assert.Equal(t, []laneKind{allCases}, j.lanes())
	assert.Len(t, taken(allCases), len(outages))
}
