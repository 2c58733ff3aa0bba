package dataplane

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
