package judge

import (
	"flag"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// TestMain runs as many tests at the same time as there are processors, not more as elsewhere: the tests of package
// suite run beside these, and the judge notices when the machine is too busy.
func TestMain(m *testing.M) {
	const parallel = "test.parallel"
	_ = flag.Set(parallel, flag.Lookup(parallel).Value.String())
	testkit.Main(m)
}
