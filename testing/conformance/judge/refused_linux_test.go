package judge

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// A case counts as not run if the API server rejects its objects, or if it fails while the API server is unreachable.
// Later cases are run.
func TestCasesThatTheAPIServerSpoilsAreNotRun(t *testing.T) {
	need.Root(t)
	need.Program(t, "nft")
	t.Parallel()
	p := withHost(mutantProxy(t, ""), func(h program.Host) program.Host { return &spoilingHost{Host: h} })
	r, err := judgePatiently(t.Context(), p, Options{Lanes: 1, Seed: 1, Run: regexp.MustCompile(
		"^(a cluster IP leads|source ranges guard|a client stays with its endpoint$|a pod that reaches itself)")})
	require.NoError(t, err)
	assert.Empty(t, r.Problem)
	why := map[string]string{}
	var passed []string
	for _, result := range r.Results {
		switch {
		case result.Why == "it was not selected":
		case result.Verdict == report.NotRun:
			why[result.Case] = result.Why
		default:
			assert.Contains(t, []report.Verdict{report.Passed, report.Slow}, result.Verdict, "%+v", result)
			passed = append(passed, result.Case)
		}
	}
	assert.Len(t, passed, 2)
	assert.Len(t, why, 2)
	for name, text := range why {
		want := "the API server refuses Service default/web: too guarded"
		if name == "a client stays with its endpoint" {
			want = "the API server was away: no route"
		}
		assert.Equal(t, want, text, name)
	}
}

// spoilingHost's API server rejects Services with source ranges, and fails at a Service with affinity.
type spoilingHost struct {
	program.Host
	away error
}

func (h *spoilingHost) Put(ctx context.Context, set, deleted []metav1.Object) error {
	has := func(property func(corev1.ServiceSpec) bool) bool {
		return slices.ContainsFunc(set, func(o metav1.Object) bool {
			svc, ok := o.(*corev1.Service)
			return ok && property(svc.Spec)
		})
	}
	switch {
	case has(func(s corev1.ServiceSpec) bool { return s.LoadBalancerSourceRanges != nil }):
		return &program.RefusedError{Object: "Service default/web", Reason: "too guarded"}
	case has(func(s corev1.ServiceSpec) bool { return s.SessionAffinity == corev1.ServiceAffinityClientIP }):
		h.away = errors.New("no route")
		return errors.New("not written")
	}
	return h.Host.Put(ctx, set, deleted)
}

func (h *spoilingHost) Disturbed() error {
	err := h.away
	h.away = nil
	return err
}
