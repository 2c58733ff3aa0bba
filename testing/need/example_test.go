package need_test

import (
	"fmt"
	"os"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// A test that makes network namespaces skips for other users, and fails instead where KPL_REQUIRE=1 says that nothing
// may be skipped.
func ExampleRoot() {
	_ = func(t *testing.T) {
		need.Root(t)
		need.Program(t, "nft")
		// ... the test
	}
}

// missing asks for a program that no machine has.
func missing(t testing.TB) { need.Program(t, "no-such-program") }

// report stands in for a *testing.T, and prints how the test would have ended.
type report struct{ testing.TB }

func (report) Helper()                           {}
func (report) Skipf(format string, args ...any)  { fmt.Printf("SKIP: "+format+"\n", args...) }
func (report) Fatalf(format string, args ...any) { fmt.Printf("FAIL: "+format+"\n", args...) }

// A missing program skips a test on a developer's machine, and fails it in CI.
func Example() {
	before := os.Getenv("KPL_REQUIRE")
	for _, require := range []string{"", "1"} {
		_ = os.Setenv("KPL_REQUIRE", require) // the name is valid
		missing(report{})
	}
	_ = os.Setenv("KPL_REQUIRE", before)
	// Output:
	// SKIP: needs the program no-such-program
	// FAIL: needs the program no-such-program, and KPL_REQUIRE=1 does not allow skipping
}
