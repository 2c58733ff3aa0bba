package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// caseTimeout bounds each case. None comes near it.
const caseTimeout = 60 * time.Second

// Test runs the suite against a backend, each case as a subtest. Cases that need what the backend lacks are skipped, and
// named once more at the end.
//
// It needs Linux, and the right to make network namespaces: root, or "unshare -rn go test ...". Where that is missing the
// test is skipped, or fails with KPL_REQUIRE=1 in the environment. Nothing outside the namespaces that it makes is touched.
// Backends that keep to their node's namespace can be tested in parallel.
func Test(t *testing.T, f Factory) {
	t.Helper()
	s := testSession(t, f)
	var notRun []string
	for _, c := range bySetup(cases()) {
		t.Run(c.name, func(t *testing.T) {
			if why := c.missing(f); why != "" {
				notRun = append(notRun, fmt.Sprintf("%s: %s", c.name, why))
				t.Skipf("not run: %s", why)
			}
			if err := s.runCase(t.Context(), c); err != nil {
				t.Errorf("%s (%s)\n\n%v", c.name, c.rules, err)
			}
		})
	}
	if len(notRun) > 0 {
		t.Logf("NOT RUN, %d of %d cases:\n  %s", len(notRun), len(cases()), strings.Join(notRun, "\n  "))
	}
}

// testSession makes a session for a test, or skips the test.
func testSession(t *testing.T, f Factory) *session {
	t.Helper()
	if f.New == nil {
		t.Fatal("conformance: the factory has no New")
	}
	probe, err := newNamespace("kpl-probe")
	need.That(t, err == nil, fmt.Sprintf("the right to make network namespaces, as root or under unshare -rn (%v)", err))
	probe.close()
	s, err := newSession(f)
	if err != nil {
		t.Fatalf("conformance: %v", err)
	}
	t.Cleanup(func() {
		if err := s.cleanup(context.Background()); err != nil {
			t.Errorf("at the end: %v", err)
		}
		s.close()
	})
	return s
}

// bySetup brings cases with the same setup together, and keeps their order else.
func bySetup(list []testCase) []testCase {
	var setups []setup
	for _, c := range list {
		if !slices.Contains(setups, c.setup) {
			setups = append(setups, c.setup)
		}
	}
	var sorted []testCase
	for _, set := range setups {
		for _, c := range list {
			if c.setup == set {
				sorted = append(sorted, c)
			}
		}
	}
	return sorted
}

// runCase runs one case, on the backend that is there if its setup is right and the last case left it in order.
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
	if err == nil && s.sink != nil {
		// The next case begins with nothing.
		if err = s.apply(ctx, newState(s.told.node)); err == nil {
			return nil
		}
		err = fmt.Errorf("removing all services: %w", err)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%w\n\nThe backend had been told:\n%s\n\nIts ruleset:\n%s", err, indent(s.told.String()), indent(s.dump(ctx)))
	// What it has now is not to be relied on.
	if cleanupErr := s.cleanup(context.WithoutCancel(ctx)); cleanupErr != nil {
		err = fmt.Errorf("%w\n\nand then: %w", err, cleanupErr)
	}
	s.sink = nil
	return err
}
