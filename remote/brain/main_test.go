package brain

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

func TestMain(m *testing.M) {
	if serveFleet() {
		return
	}
	testkit.Main(m)
}
