package differential

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

const (
	validSeeds     = 20000
	malformedSeeds = 5000
	gateSeeds      = 1000

	envSeeds = "KPL_DIFFERENTIAL_SEEDS" // how many
	envSeed  = "KPL_DIFFERENTIAL_SEED"  // this one only
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard()) // upstream logs whatever it skips
	klog.SetOutput(io.Discard)
	if err := allowOldAddresses(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// run runs a script through both sides and returns the first wave in which they differ, and how; -1 if they do not.
func run(ctx context.Context, sc script, allowed departures) (int, []difference) {
	u := newUpstream(sc.setup, allowed)
	o, err := newOurs(ctx, sc.setup)
	if err != nil {
		return 0, []difference{{"options", "", err}}
	}
	defer o.close()
	for i, w := range sc.waves {
		for _, e := range w {
			u.take(e)
			if err := o.take(e); err != nil {
				return i, []difference{{keyOf(e.object).String(), "", err}}
			}
		}
		if d := compare(u.sync(), o.sync(ctx)); len(d) > 0 {
			return i, d
		}
	}
	return -1, nil
}

// check fails the test if both sides differ, with a script that is as small as possible.
func check(t testing.TB, sc script, replay string) {
	t.Helper()
	wave, _ := run(t.Context(), sc, allDepartures())
	if wave < 0 {
		return
	}
	before := sc.events()
	sc = shrink(sc, func(sc script) bool {
		if !sc.setup.Malformed && invalid(sc) != nil {
			return false
		}
		wave, _ := run(t.Context(), sc, allDepartures())
		return wave >= 0
	})
	_, differences := run(t.Context(), sc, allDepartures())
	var b strings.Builder
	for _, d := range differences {
		fmt.Fprintf(&b, "  %v\n", d)
	}
	t.Fatalf("upstream and localstate differ.\n%s\nThis is left of %d events. "+
		"Save it in testdata/found:\n\n%v\nReplay: %s",
		b.String(), before, sc, replay)
}

// seeds returns the seeds to try, from the environment or as many as byDefault.
func seeds(t testing.TB, byDefault uint64) (first, end uint64) {
	number := func(name string) (uint64, bool) {
		text := os.Getenv(name)
		if text == "" {
			return 0, false
		}
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, name)
		return n, true
	}
	if seed, ok := number(envSeed); ok {
		return seed, seed + 1
	}
	if n, ok := number(envSeeds); ok {
		return 0, n
	}
	return 0, byDefault
}

func testSeeds(t *testing.T, malformed bool, byDefault uint64) {
	first, end := seeds(t, byDefault)
	for seed := first; seed < end; seed++ {
		check(t, randomScript(testkit.Seeded(seed), malformed),
			fmt.Sprintf("%s=%d go test -run '^%s$' .", envSeed, seed, t.Name()))
	}
}

// TestAgainstUpstream compares both sides on clusters that an API server accepts.
func TestAgainstUpstream(t *testing.T) { testSeeds(t, false, validSeeds) }

// TestMalformedAgainstUpstream compares them on objects that an API server rejects, but that files and old clusters may
// have.
func TestMalformedAgainstUpstream(t *testing.T) { testSeeds(t, true, malformedSeeds) }

// TestWithoutExternalIPs compares both sides with externalIPs switched off (S6): upstream by its gate, localstate by
// its option.
func TestWithoutExternalIPs(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowServiceExternalIPs,
		false)
	require.False(t, externalIPsAllowed())
	testSeeds(t, false, gateSeeds)
}
