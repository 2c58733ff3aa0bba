package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// caseTimeout bounds each case. No case comes near it.
const caseTimeout = 10 * time.Minute

// Test runs the suite against a backend, each case as a subtest. Cases that need a feature that the backend lacks are
// skipped, and listed again at the end, before the counts; "go test -v" shows both.
//
// It needs Linux and the right to create network namespaces: root, or "unshare -rn go test ...". Without it the test is
// skipped; with KPL_REQUIRE=1 in the environment it fails. Test changes nothing outside the namespaces that it creates.
// Backends that do the same can be tested in parallel.
func Test(t *testing.T, f Factory) {
	t.Helper()
	testbedOf(t, f, portSeed(t)).runCases(t, cases())
}

// portSeedVariable names the environment variable with the seed of the source ports.
const portSeedVariable = "KPL_CONFORMANCE_SEED"

// portSeed returns the seed for clients' source ports: from the environment, or random.
func portSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv(portSeedVariable)
	if text == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("conformance: %s: %v", portSeedVariable, err)
	}
	return seed
}

func (b *testbed) runCases(t *testing.T, list []testCase) {
	t.Helper()
	var notRun []string
	chosen, failed := 0, 0
	for _, c := range bySetup(list) {
		passed := t.Run(c.name, func(t *testing.T) {
			chosen++ // -test.run may leave out the others
			if why := c.missing(b.factory); why != "" {
				notRun = append(notRun, fmt.Sprintf("%s: %s", c.name, why))
				t.Skipf("not run: %s", why)
			}
			if err := b.runCase(t.Context(), c); err != nil {
				t.Errorf("%s (%s)\n\n%v%s", c.name, c.rules, err, b.seedText())
			}
		})
		if !passed {
			failed++
		}
	}
	if len(notRun) > 0 {
		t.Logf("NOT RUN, %d of %d cases:\n  %s", len(notRun), len(list), strings.Join(notRun, "\n  "))
	}
	b.logWaived(t)
	t.Log(resultText(len(list), chosen, failed, len(notRun)))
}

// resultText counts the results of the chosen cases.
func resultText(all, chosen, failed, notRun int) string {
	text := fmt.Sprintf("RESULT: %d passed, %d failed, %d not run", chosen-failed-notRun, failed, notRun)
	if chosen < all {
		text += fmt.Sprintf(", %d not chosen", all-chosen)
	}
	return text
}

// seedText says how to repeat the run with the same source ports. It is empty in a simulation.
func (b *testbed) seedText() string {
	if b.n == nil {
		return ""
	}
	return fmt.Sprintf("\n\nThe source ports of clients are those of the seed %d: %s=%[1]d.", b.seed, portSeedVariable)
}

// logWaived logs the outcomes that were accepted only because the backend lacks a feature.
func (b *testbed) logWaived(t *testing.T) {
	t.Helper()
	if text := b.waived.String(); text != "" {
		t.Logf("WAIVED, what is wrong but for what the backend lacks:\n%s", indent(text))
	}
}

// testbedOf returns a testbed for a test, or skips the test. The seed determines clients' source ports.
func testbedOf(t *testing.T, f Factory, seed uint64) *testbed {
	t.Helper()
	if err := f.check(); err != nil {
		t.Fatalf("conformance: %v", err)
	}
	families, err := network.Families()
	need.That(t, err == nil,
		fmt.Sprintf("the right to make network namespaces, as root or under unshare -rn (%v)", err))
	if !f.lacks(IPv6) && len(families) == 1 {
		if os.Getenv("KPL_REQUIRE") == "1" {
			t.Fatal("conformance: this machine has no IPv6, and KPL_REQUIRE=1 requires it")
		}
		t.Log("NOT RUN: everything with IPv6, which this machine does not have")
		f.Lacks = append(slices.Clone(f.Lacks), IPv6)
	}
	b, err := newTestbed(f, families, seed)
	if err != nil {
		t.Fatalf("conformance: %v", err)
	}
	return endWith(t, b)
}

// endWith closes a testbed at the end of the test.
func endWith(t *testing.T, b *testbed) *testbed {
	t.Cleanup(func() {
		if err := b.cleanup(context.Background()); err != nil {
			t.Errorf("at the end: %v", err)
		}
		b.close()
	})
	return b
}

// bySetup groups cases by setup, in an otherwise stable order.
func bySetup(list []testCase) []testCase {
	first := func(c testCase) int {
		return slices.IndexFunc(list, func(other testCase) bool { return other.setup == c.setup })
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b testCase) int { return first(a) - first(b) })
}

// runCase runs one case, on the current backend if that has the same setup and the last case passed.
func (b *testbed) runCase(ctx context.Context, c testCase) error {
	ctx, cancel := context.WithTimeout(ctx, caseTimeout)
	defer cancel()
	if b.sink != nil && b.setup != c.setup {
		if err := b.cleanup(ctx); err != nil {
			return err
		}
	}
	if b.sink == nil {
		if err := b.start(ctx, c.setup); err != nil {
			return err
		}
	}
	err := c.run(ctx, b)
	if err == nil && b.sink != nil { // the next case begins without services
		if err = b.put(ctx); err != nil {
			err = fmt.Errorf("removing all services: %w", err)
		}
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%w\n\nThe state given to the backend:\n%s\n\nIts ruleset:\n%s", err,
		indent(b.described.collect().String()), indent(b.dump(ctx)))
	// The backend's state is unknown now.
	if cleanupErr := b.cleanup(context.WithoutCancel(ctx)); cleanupErr != nil {
		err = fmt.Errorf("%w\n\nand then: %w", err, cleanupErr)
	}
	b.sink = nil
	return err
}
