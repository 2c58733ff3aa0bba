package suite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/random"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// Test runs all cases against a backend, see conformance.Test.
func Test(t *testing.T, f backend.Factory) {
	t.Helper()
	runCases(t, testbedOf(t, f, portSeed(t)), cases.All())
}

// Random tests a backend in n random states, see conformance.Random.
func Random(t *testing.T, f backend.Factory, seed uint64, n int) {
	t.Helper()
	runRandom(t, testbedOf(t, f, seed), seed, n)
}

func runRandom(t *testing.T, b *testbed.Testbed, seed uint64, n int) {
	t.Helper()
	if err := random.Run(t.Context(), b, seed, n); err != nil {
		t.Errorf("random test with seed %d and %d states\n\n%v", seed, n, err)
	}
	logWaived(t, b)
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

func runCases(t *testing.T, b *testbed.Testbed, list []cases.Case) {
	t.Helper()
	var notRun []string
	chosen, failed := 0, 0
	for _, c := range cases.BySetup(list) {
		passed := t.Run(c.Name, func(t *testing.T) {
			chosen++ // -test.run may leave out the others
			if why := c.Missing(b.Factory); why != "" {
				notRun = append(notRun, fmt.Sprintf("%s: %s", c.Name, why))
				t.Skipf("not run: %s", why)
			}
			if err := runCase(t.Context(), b, c); err != nil {
				t.Errorf("%s (%s)\n\n%v%s", c.Name, c.Rules, err, seedText(b))
			}
		})
		if !passed {
			failed++
		}
	}
	if len(notRun) > 0 {
		t.Logf("NOT RUN, %d of %d cases:\n  %s", len(notRun), len(list), strings.Join(notRun, "\n  "))
	}
	logWaived(t, b)
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
func seedText(b *testbed.Testbed) string {
	if b.Network == nil {
		return ""
	}
	return fmt.Sprintf("\n\nThe source ports of clients are those of the seed %d: %s=%[1]d.", b.Seed, portSeedVariable)
}

// logWaived logs the outcomes that were accepted only because the backend lacks a feature.
func logWaived(t *testing.T, b *testbed.Testbed) {
	t.Helper()
	if text := b.Waived.String(); text != "" {
		t.Logf("WAIVED, what is wrong but for what the backend lacks:\n%s", testbed.Indent(text))
	}
}

// testbedOf returns a testbed for a test, or skips the test. The seed determines clients' source ports.
func testbedOf(t *testing.T, f backend.Factory, seed uint64) *testbed.Testbed {
	t.Helper()
	if err := cases.Check(f); err != nil {
		t.Fatalf("conformance: %v", err)
	}
	families, err := network.Families()
	need.That(t, err == nil,
		fmt.Sprintf("the right to make network namespaces, as root or under unshare -rn (%v)", err))
	if !f.LacksFeature(backend.IPv6) && len(families) == 1 {
		if os.Getenv("KPL_REQUIRE") == "1" {
			t.Fatal("conformance: this machine has no IPv6, and KPL_REQUIRE=1 requires it")
		}
		t.Log("NOT RUN: everything with IPv6, which this machine does not have")
		f.Lacks = append(slices.Clone(f.Lacks), backend.IPv6)
	}
	b, err := testbed.New(f, families, seed)
	if err != nil {
		t.Fatalf("conformance: %v", err)
	}
	return endWith(t, b)
}

// endWith closes a testbed at the end of the test.
func endWith(t *testing.T, b *testbed.Testbed) *testbed.Testbed {
	t.Cleanup(func() {
		if err := b.Cleanup(context.Background()); err != nil {
			t.Errorf("at the end: %v", err)
		}
		b.Close()
	})
	return b
}

// runCase runs one case, on the current backend if that has the same setup and the last case passed.
func runCase(ctx context.Context, b *testbed.Testbed, c cases.Case) error {
	ctx, cancel := context.WithTimeout(ctx, cases.Timeout)
	defer cancel()
	if b.Sink != nil && b.Setup != c.Setup {
		if err := b.Cleanup(ctx); err != nil {
			return err
		}
	}
	if b.Sink == nil {
		if err := b.Start(ctx, c.Setup); err != nil {
			return err
		}
	}
	err := c.Run(ctx, b)
	if err == nil && b.Sink != nil { // the next case begins without services
		if err = b.Put(ctx); err != nil {
			err = fmt.Errorf("removing all services: %w", err)
		}
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%w\n\nThe state given to the backend:\n%s\n\nIts ruleset:\n%s", err,
		testbed.Indent(b.Described.Collect().String()), testbed.Indent(b.Dump(ctx)))
	// The backend's state is unknown now.
	if cleanupErr := b.Cleanup(context.WithoutCancel(ctx)); cleanupErr != nil {
		err = fmt.Errorf("%w\n\nand then: %w", err, cleanupErr)
	}
	b.Sink = nil
	return err
}
