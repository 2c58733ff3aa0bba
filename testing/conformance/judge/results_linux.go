package judge

import (
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/speed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// endedEarly is the reason for cases that an aborted run did not reach.
const endedEarly = "the run ended early"

// early returns the result of a case that an aborted run did not reach.
func early(c cases.Case) report.Result {
	r := result(c, report.NotRun, endedEarly)
	r.Interrupted = true
	return r
}

// report returns the results of all cases.
func (j *judging) report() *report.Report {
	r := &report.Report{Kernel: kernel(), Seed: j.Seed}
	for _, c := range j.queue {
		j.add(early(c))
	}
	r.Problem, r.Log = problemOf(j.problem)
	r.Machine = j.machine.Summary()
	r.Results = j.results
	r.Absent()
	slices.SortStableFunc(r.Results, func(a, b report.Result) int { return strings.Compare(a.Case, b.Case) })
	r.Speed = j.figures.Speed()
	return r
}

// problemOf returns the problem of the whole program and the end of its log, or "".
func problemOf(err error) (problem, log string) {
	if err == nil {
		return "", ""
	}
	problem = err.Error()
	var whole *testbed.ProgramError
	if errors.As(err, &whole) {
		problem = whole.Error()
	}
	var logged interface{ Log() string }
	if errors.As(err, &logged) {
		log = logged.Log()
	}
	return problem, log
}

// kernel returns the kernel release.
func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// measureSpeed measures the program at each size. It returns nil if there are none.
func (j *judging) measureSpeed(ctx context.Context, plan speed.Plan) *report.Speed {
	if len(j.Sizes) == 0 || j.problem != nil {
		return nil
	}
	env := j.base.Env(backend.Factory{Lacks: j.lacks}.Families())
	return speed.Measure(ctx, speed.Program{
		Open: func(ctx context.Context) (program.Host, error) {
			return j.Open(ctx, nodeOf(env), configurationOf(j.base, env.Families))
		},
		Network: j.families, Families: env.Families,
		Objects: append(j.base.Objects(env.Families), otherNodes(env.Families)...),
		Cleans:  j.Cleans, StartTimeout: j.StartTimeout, Rates: j.Rates, Seed: j.Seed, Say: j.say,
		Watch: j.watch, Busy: j.machine.Busy,
	}, plan, j.Sizes)
}
