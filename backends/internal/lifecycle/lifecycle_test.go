package lifecycle

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os/exec"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// resource notes in a log that it was closed.
type resource struct {
	name string
	log  *[]string
}

func (r *resource) Close() error {
	*r.log = append(*r.log, "close "+r.name)
	return nil
}

// backend is a Spec whose families are their names, and which logs what it does. Its host has no addresses: an ordinary
// user cannot ask for those of a network namespace.
func backend(log *[]string) *Spec[string] {
	note := func(what string) { *log = append(*log, what) }
	return &Spec[string]{
		Name: "test", Common: frontend.Common{Host: inMemory{func() []netip.Addr { return nil }}},
		Open: func(ctx context.Context, s *Spec[string]) error {
			for _, name := range []string{"first", "second"} {
				var option io.Closer
				if err := Default(s, &option, func() (io.Closer, error) { return &resource{name, log}, nil }); err != nil {
					return err
				}
			}
			return s.Serve(ctx, func(f model.Family) (string, error) {
				s.Metrics.Counter(f, "applied", "Syncs")
				return f.String(), nil
			})
		},
		Apply: func(f string, _ context.Context, _ *frontend.Changes) error {
			note("apply " + f)
			return nil
		},
		Check: func(string, context.Context, *frontend.Changes) (frontend.CheckResult, error) {
			return frontend.CheckResult{}, nil
		},
		Remove: func(f string, _ context.Context) error {
			note("remove " + f)
			return nil
		},
	}
}

func TestABackendFromNewToClose(t *testing.T) {
	var log []string
	s, registry := backend(&log), prometheus.NewRegistry()
	s.Common.Metrics = registry
	r, err := s.Start(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.Sync(t.Context()))
	require.NoError(t, r.CleanUp(t.Context()))
	metrics, err := registry.Gather()
	require.NoError(t, err)
	assert.Len(t, metrics[0].GetMetric(), 2, "one for each family")
	require.NoError(t, r.Close())
	require.NoError(t, r.Close(), "a second one does nothing")
	assert.Equal(t, []string{"apply IPv4", "apply IPv6", "remove IPv4", "remove IPv6", "close second", "close first"}, log)
	metrics, err = registry.Gather()
	require.NoError(t, err)
	assert.Empty(t, metrics)
}

func TestWhatHasBeenOpenedIsClosedAfterAFailure(t *testing.T) {
	var log []string
	closed := []string{"close second", "close first"}
	s := backend(&log)
	open := s.Open
	s.Open = func(ctx context.Context, s *Spec[string]) error {
		return errors.Join(open(ctx, s), errors.New("no kernel"))
	}
	_, err := s.Start(t.Context())
	require.EqualError(t, err, "test: no kernel")
	assert.Equal(t, closed, log)

	log = nil
	s, registry := backend(&log), prometheus.NewRegistry()
	s.Common.Metrics = registry
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "applied"}))
	_, err = s.Start(t.Context())
	require.ErrorContains(t, err, "test: metrics: ")
	assert.Equal(t, closed, log)

	log = nil
	require.NoError(t, backend(&log).CleanUp(t.Context()))
	assert.Equal(t, append([]string{"remove IPv4", "remove IPv6"}, closed...), log, "a clean-up without a backend")
}

func TestOptionsAreCheckedBeforeAnythingIsOpened(t *testing.T) {
	var log []string
	s := backend(&log)
	s.Common = frontend.Common{Families: []model.Family{model.IPv4, model.IPv4},
		NodePortAddresses: nodeaddr.Choice{CIDRs: []netip.Prefix{{}}}}
	s.Invalid, s.MasqueradeMark = errors.New("name: too long"), new(uint32)
	*s.MasqueradeMark = 3
	_, err := s.Start(t.Context())
	require.EqualError(t, err, "test: families: invalid or duplicate family IPv4\n"+
		"nodePortAddresses[0]: invalid Prefix is not a prefix\nname: too long\nmasqueradeMark: 0x3 must have exactly one bit set")
	assert.Empty(t, log)
}

func TestOnlyAnAbsentIPv6IsNotServedUnlessItIsAskedFor(t *testing.T) {
	absent := errors.New("no IPv6")
	for name, tc := range map[string]struct {
		asked []model.Family
		err   error // of IPv6
		works bool
	}{
		"absent":               {nil, absent, true},
		"absent and asked for": {model.Families(), absent, false},
		"broken":               {nil, errors.New("busy"), false},
	} {
		t.Run(name, func(t *testing.T) {
			var log []string
			s := backend(&log)
			s.Common.Families = tc.asked
			s.IsAbsent = func(err error) bool { return errors.Is(err, absent) }
			s.Open = func(ctx context.Context, s *Spec[string]) error {
				return s.Serve(ctx, func(f model.Family) (string, error) {
					if f == model.IPv6 {
						return "", tc.err
					}
					return f.String(), nil
				})
			}
			err := s.CleanUp(t.Context())
			if !tc.works {
				require.ErrorIs(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, []string{"remove IPv4"}, log)
		})
	}
}

func TestAnErrorSaysWhatToDo(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{syscall.EPERM, "test: operation not permitted; is this process root with CAP_NET_ADMIN in its network " +
			"namespace, or an administrator?"},
		{&exec.Error{Name: "iptables-nft", Err: exec.ErrNotFound}, `test: exec: "iptables-nft": executable file not ` +
			`found in $PATH; is the package that has this program installed?`},
		{errors.New("broken"), "test: broken"},
	} {
		b := backend(&[]string{})
		b.Open = func(context.Context, *Spec[string]) error { return test.err }
		_, err := b.Start(t.Context())
		require.EqualError(t, err, test.want)
		require.ErrorIs(t, err, test.err)
	}
}

// Rights may also be lost after the start: then each Sync that fails says what to do.
func TestAnErrorOfASyncSaysWhatToDo(t *testing.T) {
	b := backend(&[]string{})
	b.Common.Families = []model.Family{model.IPv4}
	b.Apply = func(string, context.Context, *frontend.Changes) error { return syscall.EPERM }
	r, err := b.Start(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	r.SetService(&model.Service{Name: model.ServiceName{Namespace: "a", Name: "b"}})
	err = r.Sync(t.Context())
	require.ErrorIs(t, err, syscall.EPERM)
	assert.ErrorContains(t, err, "is this process root with CAP_NET_ADMIN")
	assert.Equal(t, model.IPv4.Set(), sink.FailedFamilies(err), "it still says what failed")
}
