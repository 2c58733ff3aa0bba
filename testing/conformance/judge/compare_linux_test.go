package judge

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/simple"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// compareSimple compares the simple backend as a program with another one.
func compareSimple(t *testing.T, other program.Proxy, seed uint64, clusters int) *report.Report {
	t.Helper()
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	c, err := newComparison([2]program.Proxy{mutantProxy(t, ""), other}, CompareOptions{
		Names:    [2]string{"one", "other"},
		Clusters: clusters, Time: time.Hour, Seed: seed, Say: func(text string) { t.Log(text) }})
	require.NoError(t, err)
	c.tries, c.machine = 4, ownMachine()
	for _, s := range c.sides {
		s.machine = c.machine
	}
	return c.report(c.run(t.Context()))
}

// On a busy machine a difference says nothing.
func TestProgramsSideBySideOnABusyMachine(t *testing.T) {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	t.Parallel()
	c, err := newComparison([2]program.Proxy{mutantProxy(t, ""), mutantProxy(t, simple.IgnoresAffinity)}, CompareOptions{
		Names: [2]string{"one", "other"}, Clusters: 1, Time: time.Hour, Seed: 271})
	require.NoError(t, err)
	c.machine, c.sides[0].quietTimeout = machineWith(func() (int, bool) { return 50, false }), 0
	for _, s := range c.sides {
		s.machine = c.machine
	}
	r := c.report(c.run(t.Context()))
	assert.Empty(t, r.Problem)
	assert.Empty(t, differences(r))
	assert.Equal(t, report.Counts{Passed: 2, NotJudged: 1, NotRun: 1}, r.Counts(report.Comparison), "%+v", r.Results)
	assert.NotNil(t, r.Machine)
}

// differences returns the results about flows with different results.
func differences(r *report.Report) (list []report.Result) {
	for _, result := range r.Results {
		if len(result.Failures) > 0 && result.Profile == report.Comparison {
			list = append(list, result)
		}
	}
	return list
}

func TestAProgramIsLikeItself(t *testing.T) {
	t.Parallel()
	r := compareSimple(t, mutantProxy(t, ""), 263, 1)
	assert.Empty(t, r.Problem)
	assert.Equal(t, report.Counts{Passed: 3}, r.Counts(report.Comparison), "%+v", r.Results)
	assert.Zero(t, r.Counts(report.Note).Total(), "%+v", r.Results)
}

// Comparing a backend with a mutant finds the mutant's fault, and reduces three Services to one.
func TestAMutantBesideTheBackend(t *testing.T) {
	t.Parallel()
	r := compareSimple(t, mutantProxy(t, simple.IgnoresAffinity), 271, 1)
	assert.Empty(t, r.Problem)
	list := differences(r)
	require.NotEmpty(t, list)
	for _, d := range list {
		assert.Contains(t, d.Case, "one delivers, other delivers or moves clients that have affinity")
		assert.Contains(t, d.Rules, "S32")
		assert.Contains(t, d.Why, "what one does is expected")
		assert.Contains(t, d.Failures[0].Seen, "\nother: delivered to an endpoint of the port, or "+strays)
		assert.Equal(t, 1, strings.Count(d.Failures[0].Objects, "kind: Service\n"), "%s", d.Failures[0].Objects)
	}
}

func TestAProgramThatLeavesRulesBesideTheBackend(t *testing.T) {
	t.Parallel()
	r := compareSimple(t, mutantProxy(t, simple.LeavesATable), 25, 1)
	assert.Empty(t, r.Problem)
	list := differences(r)
	require.Len(t, list, 1)
	assert.Equal(t, "clean-up of other leaves nothing", list[0].Case)
	assert.Contains(t, list[0].Failures[0].Seen, "left: ")
}

func TestADeadProgramBesideTheBackend(t *testing.T) {
	t.Parallel()
	other := mutantProxy(t, "")
	open := other.Open
	other.Open = func(ctx context.Context, env program.Node, c program.Configuration) (program.Host, error) {
		h, err := open(ctx, env, c)
		if err == nil {
			h.(*mutantHost).start = func() *exec.Cmd { return exec.Command(os.Args[0], "-no-such-flag") }
		}
		return h, err
	}
	r := compareSimple(t, other, 1, 1)
	assert.Contains(t, r.Problem, "other: it has ended: exit status 2")
	assert.NotContains(t, r.Problem, "one: ")
	assert.Equal(t, "failure", r.Conclusion(report.Comparison))
}
