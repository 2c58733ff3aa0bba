package testkit

import (
	"flag"
	"net/http"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// leakTimeout is the time that goroutines have to end. goleak waits for less than half a second, which is too short on
// a busy machine.
const leakTimeout = time.Minute

// atOnce is the number of parallel tests that run at the same time. By default it is the number of processors, and most
// of them stay idle: parallel tests wait for packets and timeouts rather than compute.
const atOnce = 8

// Main is the TestMain of a package: it runs the tests, fails if goroutines remain, and exits.
func Main(m *testing.M) {
	MoreAtOnce()
	goleak.VerifyTestMain(waiting{m})
}

// MoreAtOnce is for the TestMain of a package that does not use Main: it raises the number of parallel tests that run
// at the same time, unless -parallel sets it.
func MoreAtOnce() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if now, err := strconv.Atoi(flag.Lookup("test.parallel").Value.String()); !given && err == nil && now < atOnce {
		_ = flag.Set("test.parallel", strconv.Itoa(atOnce)) // a number
	}
}

// waiting waits for goroutines that are about to end.
type waiting struct{ *testing.M }

// Run implements [goleak.TestingM].
func (m waiting) Run() int {
	code := m.M.Run()
	if code == 0 {
		_ = findLeak(leakTimeout) // goleak will find it too
	}
	return code
}

// NoLeak fails the test if goroutines remain.
func NoLeak(t testing.TB, options ...goleak.Option) {
	t.Helper()
	if err := findLeak(leakTimeout, options...); err != nil {
		t.Error(err)
	}
}

// findLeak returns an error about goroutines that remain after the timeout. In every check it closes idle connections
// of the default transport: a connection that is still being established when its request is cancelled becomes idle
// later, and then stays for a minute and a half.
func findLeak(timeout time.Duration, options ...goleak.Option) error {
	for start := time.Now(); ; {
		http.DefaultClient.CloseIdleConnections()
		if err := goleak.Find(options...); err == nil || time.Since(start) >= timeout {
			return err
		}
	}
}
