package brain

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if serveFleet() {
		return
	}
	goleak.VerifyTestMain(m)
}
