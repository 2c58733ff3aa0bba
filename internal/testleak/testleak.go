// Package testleak finds goroutines that tests leave behind. Only tests use it.
package testleak

import (
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long a goroutine may take to end. goleak waits for less than half a second, which on a busy machine
// was too short for goroutines that had been told to end.
const patience = time.Minute

// Main is the TestMain of a package: it runs its tests, and fails if goroutines are left that do not end. It exits.
func Main(m *testing.M) { goleak.VerifyTestMain(patient{m}) }

// patient waits for goroutines that the tests have told to end.
type patient struct{ *testing.M }

// Run implements [goleak.TestingM].
func (m patient) Run() int {
	code := m.M.Run()
	if code == 0 {
		_ = find(patience) // goleak will find it too
	}
	return code
}

// None fails the test if goroutines are left that do not end.
func None(t testing.TB, options ...goleak.Option) {
	t.Helper()
	if err := find(patience, options...); err != nil {
		t.Error(err)
	}
}

// find returns an error about the goroutines that have not ended after so long. Idle connections of the transport that
// the whole process shares are closed, as often as it looks: a connection that is still being made when its request is
// cancelled becomes idle later, and then stays for a minute and a half.
func find(patience time.Duration, options ...goleak.Option) error {
	for start := time.Now(); ; {
		http.DefaultClient.CloseIdleConnections()
		if err := goleak.Find(options...); err == nil || time.Since(start) >= patience {
			return err
		}
	}
}
