package kubeproxy_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Every goroutine ends with the context of its Run.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
