package userspace_test

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/testleak"
)

func TestMain(m *testing.M) { testleak.Main(m) }
