package kubeproxy_test

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// Every goroutine ends with the context of its Run.
func TestMain(m *testing.M) { testkit.Main(m) }
