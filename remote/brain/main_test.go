package brain

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/testleak"
)

func TestMain(m *testing.M) {
	if serveFleet() {
		return
	}
	testleak.Main(m)
}
