package judge

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/simple"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// blindHost changes the objects on their way to the program, which so behaves as if it ignored a field.
type blindHost struct {
	program.Host
	forget func(metav1.Object)
}

func (h *blindHost) Put(ctx context.Context, set, deleted []metav1.Object) error {
	var seen []metav1.Object
	for _, o := range set {
		o, _ = o.(runtime.Object).DeepCopyObject().(metav1.Object)
		h.forget(o)
		seen = append(seen, o)
	}
	return h.Host.Put(ctx, seen, deleted)
}

// Each program that ignores a field of an object is caught by the case about it.
func TestTheJudgeCatchesProgramsThatIgnoreFields(t *testing.T) {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	t.Parallel()
	inSlices := func(f func(*discoveryv1.EndpointHints)) func(metav1.Object) {
		return func(o metav1.Object) {
			if s, ok := o.(*discoveryv1.EndpointSlice); ok {
				for _, e := range s.Endpoints {
					if e.Hints != nil {
						f(e.Hints)
					}
				}
			}
		}
	}
	// entries makes a program take one entry of several for an address: that with this index, or the last.
	entries := func(index int) func(metav1.Object) {
		return func(o metav1.Object) {
			if s, ok := o.(*discoveryv1.EndpointSlice); ok && len(s.Endpoints) > 1 {
				index := min(index, len(s.Endpoints)-1)
				s.Endpoints = s.Endpoints[index : index+1]
			}
		}
	}
	for name, forget := range map[string]func(metav1.Object){
		"hints for zones keep to the node's zone":     inSlices(func(h *discoveryv1.EndpointHints) { h.ForZones = nil }),
		"hints for nodes come before hints for zones": inSlices(func(h *discoveryv1.EndpointHints) { h.ForNodes = nil }),
		"a Service of another service proxy is left to it": func(o metav1.Object) {
			delete(o.GetLabels(), cluster.LabelServiceProxyName)
		},
		"a load balancer with ipMode Proxy is left to itself": func(o metav1.Object) {
			if s, ok := o.(*corev1.Service); ok {
				for i := range s.Status.LoadBalancer.Ingress {
					s.Status.LoadBalancer.Ingress[i].IPMode = nil
				}
			}
		},
		"an address that is there twice in a slice is served by its ready entry":      entries(0),
		"an entry that is not ready hides no ready one of the same address before it": entries(1),
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.HasPrefix(name, "hints for zones") && !strings.HasPrefix(name, "an address that is there twice") {
				need.Deep(t)
			}
			t.Parallel()
			simple.CaseNamed(t, name)
			p := withHost(mutantProxy(t, ""), func(h program.Host) program.Host { return &blindHost{h, forget} })
			assert.Equal(t, report.Failed, verdictOf(t, judgeAlone, p, name))
		})
	}
}

// Each program that misses changes, or loses connections over them, is caught by the case about it.
func TestTheJudgeCatchesProgramsThatDoNotFollow(t *testing.T) {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	t.Parallel()
	wrapped := func(put func(h *missingHost, set, deleted []metav1.Object) (_, _ []metav1.Object)) program.Proxy {
		return withHost(mutantProxy(t, ""), func(h program.Host) program.Host {
			return &missingHost{Host: h, change: put, known: map[string]bool{}}
		})
	}
	keepsWhatGoes := func(h *missingHost, set, deleted []metav1.Object) (_, _ []metav1.Object) {
		if h.away {
			deleted = nil
		}
		return set, deleted
	}
	ignoresLowerVersions := func(h *missingHost, set, deleted []metav1.Object) (_, _ []metav1.Object) {
		if h.away {
			set = slices.DeleteFunc(slices.Clone(set), func(o metav1.Object) bool { return h.known[o.GetName()] })
		}
		return set, deleted
	}
	// A program that knows endpoints by their addresses alone forgets them with the old slice.
	mixesSlices := func(_ *missingHost, set, deleted []metav1.Object) (_, _ []metav1.Object) {
		if slices.ContainsFunc(deleted, func(o metav1.Object) bool { return strings.Contains(o.GetName(), "web-p0") }) {
			deleted = slices.Concat(deleted, slices.DeleteFunc(slices.Clone(set),
				func(o metav1.Object) bool { return !strings.Contains(o.GetName(), "web-p0") }))
		}
		return set, deleted
	}
	const expired = "what changed while the API server was away is right when it is back, with an expired history"
	const lower = "an API server that comes back with lower resource versions is followed"
	const restarted = "an API server that restarts is followed"
	const silent = "an API server that is silent after a restore costs no connection, and is followed later"
	const rollouts = "endpoints that stay lose no connection at a hundred and at a thousand changes a second"
	for _, tt := range []struct {
		fault, name string
		proxy       program.Proxy
	}{
		{"keeps what goes", expired, wrapped(keepsWhatGoes)},
		{"keeps what goes", restarted, wrapped(keepsWhatGoes)},
		{"keeps what goes", silent, wrapped(keepsWhatGoes)},
		{"gives up without its API server", silent, withHost(mutantProxy(t, ""),
			func(h program.Host) program.Host { return &givingUpHost{h} })},
		{"ignores lower versions", lower, wrapped(ignoresLowerVersions)},
		{"mixes slices", "an EndpointSlice whose name changes loses no connection", wrapped(mixesSlices)},
		{string(simple.ReloadsWithAGap), "endpoints that stay lose no connection while others come and go all the time",
			mutantProxy(t, simple.ReloadsWithAGap)},
		{string(simple.ReloadsWithAGap), rollouts, mutantProxy(t, simple.ReloadsWithAGap)},
		{string(simple.KeepsEndpoints), rollouts, mutantProxy(t, simple.KeepsEndpoints)},
		{"answers no health check", "the health check of a service knows whether the node has endpoints",
			mutantProxy(t, "")},
	} {
		t.Run(tt.fault+", "+tt.name, func(t *testing.T) {
			if slices.Contains([]string{expired, lower, restarted, silent}, tt.name) ||
				tt.fault == string(simple.KeepsEndpoints) {
				need.Deep(t)
			}
			t.Parallel()
			assert.Equal(t, report.Failed, verdictOf(t, judgeAlone, tt.proxy, tt.name))
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		for _, c := range cases.ForPrograms() {
			if strings.HasPrefix(c.Name, "the health check of a service") || c.Outage && !need.IsDeep() {
				continue // the simple backend answers no health check
			}
			// Right results must look right on a busy machine.
			verdict := verdictOf(t, judgePatiently, mutantProxy(t, ""), c.Name)
			assert.Contains(t, []report.Verdict{report.Passed, report.Slow}, verdict, c.Name)
		}
	})
}

// missingHost changes what is written, so that the program misses it.
type missingHost struct {
	program.Host
	away   bool
	known  map[string]bool // names of objects that were written
	change func(h *missingHost, set, deleted []metav1.Object) (_, _ []metav1.Object)
}

func (h *missingHost) Put(ctx context.Context, set, deleted []metav1.Object) error {
	set, deleted = h.change(h, set, deleted)
	for _, o := range set {
		h.known[o.GetName()] = true
	}
	return h.Host.Put(ctx, set, deleted)
}

func (h *missingHost) Away(ctx context.Context) error {
	h.away = true
	return h.Host.(apiServerOutages).Away(ctx)
}

func (h *missingHost) Back(ctx context.Context, r program.Return) error {
	h.away = false
	return h.Host.(apiServerOutages).Back(ctx, r)
}

// givingUpHost breaks the program's rules when its API server is silent, as if the program did.
type givingUpHost struct{ program.Host }

func (h *givingUpHost) Away(ctx context.Context) error { return h.Host.(apiServerOutages).Away(ctx) }

func (h *givingUpHost) Back(ctx context.Context, r program.Return) error {
	if err := h.Host.(apiServerOutages).Back(ctx, r); err != nil || r != program.Silent {
		return err
	}
	return h.Break(ctx)
}

// judgeFunc is Run, or another way to judge, on a machine that others keep busy as well.
type judgeFunc func(context.Context, program.Proxy, Options) (*report.Report, error)

// verdictOf judges a program with one case.
func verdictOf(t *testing.T, run judgeFunc, p program.Proxy, name string) report.Verdict {
	t.Helper()
	r, err := run(t.Context(), p, Options{Lanes: 1, Seed: 1,
		Run: regexp.MustCompile("^" + regexp.QuoteMeta(name) + "$")})
	require.NoError(t, err)
	require.Empty(t, r.Problem)
	for _, result := range r.Results {
		if result.Case == name {
			return result.Verdict
		}
	}
	t.Fatalf("there is no result of %q", name)
	return ""
}

// apiServerOutages are the optional methods of a host whose API server can go away.
type apiServerOutages interface {
	Away(ctx context.Context) error
	Back(ctx context.Context, r program.Return) error
}
