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

// caseTimeout bounds each case. All cases take much less.
const caseTimeout = 10 * time.Minute

// Test runs the suite against a backend, each case as a subtest. Cases that need a feature that the backend lacks are
// skipped, and listed again at the end, before the numbers of results; "go test -v" shows both.
//
// It needs Linux, and the right to create network namespaces: root, or "unshare -rn go test ...". Without that the test
// is skipped or, with KPL_REQUIRE=1 in the environment, fails. It touches nothing outside the namespaces that it
// creates. Backends that keep to their node's namespace can be tested in parallel.
func Test(t *testing.T, f Factory) {
	t.Helper()
	testSession(t, f, portSeed(t)).runCases(t, cases())
}

// portSeedVariable names the environment variable with the seed of the source ports.
const portSeedVariable = "KPL_CONFORMANCE_SEED"

// portSeed returns the seed for the source ports of clients: the one in the environment, or a random one.
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

// runCases runs cases, each as a subtest.
func (s *session) runCases(t *testing.T, list []testCase) {
	t.Helper()
	var notRun []string
	chosen, failed := 0, 0
	for _, c := range bySetup(list) {
		passed := t.Run(c.name, func(t *testing.T) {
			chosen++ // -test.run may leave the others out
			if why := c.missing(s.factory); why != "" {
				notRun = append(notRun, fmt.Sprintf("%s: %s", c.name, why))
				t.Skipf("not run: %s", why)
			}
			if err := s.runCase(t.Context(), c); err != nil {
				t.Errorf("%s (%s)\n\n%v%s", c.name, c.rules, err, s.seedText())
			}
		})
		if !passed {
			failed++
		}
	}
	if len(notRun) > 0 {
		t.Logf("NOT RUN, %d of %d cases:\n  %s", len(notRun), len(list), strings.Join(notRun, "\n  "))
	}
	s.logWaived(t)
	t.Log(resultText(len(list), chosen, failed, len(notRun)))
}

// resultText counts the results of the cases. Those that -test.run leaves out are not chosen.
func resultText(all, chosen, failed, notRun int) string {
	text := fmt.Sprintf("RESULT: %d passed, %d failed, %d not run", chosen-failed-notRun, failed, notRun)
	if chosen < all {
		text += fmt.Sprintf(", %d not chosen", all-chosen)
	}
	return text
}

// seedText says how to use the same source ports again; "" in a simulation.
func (s *session) seedText() string {
	if s.n == nil {
		return ""
	}
	return fmt.Sprintf("\n\nThe source ports of clients are those of the seed %d: %s=%[1]d.", s.seed, portSeedVariable)
}

// logWaived logs what passed only because the backend lacks a feature.
func (s *session) logWaived(t *testing.T) {
	t.Helper()
	if text := s.waived.String(); text != "" {
		t.Logf("WAIVED, what is wrong but for what the backend lacks:\n%s", indent(text))
	}
}

// testSession returns a session for a test, or skips the test. The seed determines the source ports of clients.
func testSession(t *testing.T, f Factory, seed uint64) *session {
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
	s, err := newSession(f, families, seed)
	if err != nil {
		t.Fatalf("conformance: %v", err)
	}
	return endWith(t, s)
}

// endWith ends a session with its test.
func endWith(t *testing.T, s *session) *session {
	t.Cleanup(func() {
		if err := s.cleanup(context.Background()); err != nil {
			t.Errorf("at the end: %v", err)
		}
		s.close()
	})
	return s
}

// bySetup groups cases with the same setup, and otherwise keeps their order.
func bySetup(list []testCase) []testCase {
	first := func(c testCase) int {
		return slices.IndexFunc(list, func(other testCase) bool { return other.setup == c.setup })
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b testCase) int { return first(a) - first(b) })
}

// runCase runs one case, on the current backend if that has the right setup and the last case did not fail.
func (s *session) runCase(ctx context.Context, c testCase) error {
	ctx, cancel := context.WithTimeout(ctx, caseTimeout)
	defer cancel()
	if s.sink != nil && s.setup != c.setup {
		if err := s.cleanup(ctx); err != nil {
			return err
		}
	}
	if s.sink == nil {
		if err := s.start(ctx, c.setup); err != nil {
			return err
		}
	}
	err := c.run(ctx, s)
	if err == nil && s.sink != nil { // the next case begins with nothing
		if err = s.put(ctx); err != nil {
			err = fmt.Errorf("removing all services: %w", err)
		}
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%w\n\nThe backend had been told:\n%s\n\nIts ruleset:\n%s", err, indent(s.told.collect().String()),
		indent(s.dump(ctx)))
	// The state of the backend is unknown now.
	if cleanupErr := s.cleanup(context.WithoutCancel(ctx)); cleanupErr != nil {
		err = fmt.Errorf("%w\n\nand then: %w", err, cleanupErr)
	}
	s.sink = nil
	return err
}
