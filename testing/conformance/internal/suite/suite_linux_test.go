package suite

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/simple"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

func TestTheSimpleBackendPasses(t *testing.T) {
	need.Program(t, "nft")
	t.Parallel()
	Test(t, simple.Factory(""))
}
