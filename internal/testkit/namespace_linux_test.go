package testkit

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
)

// ending stands in for a test, and notes how it ended. Like a test's, its methods end the goroutine.
type ending struct {
	testing.TB
	skipped bool
	failed  string
}

func (e *ending) Helper()       {}
func (e *ending) Skipped() bool { return e.skipped }
func (e *ending) Failed() bool  { return e.failed != "" }

func (e *ending) SkipNow() {
	e.skipped = true
	runtime.Goexit()
}

func (e *ending) Fatalf(format string, _ ...any) {
	e.failed = format
	runtime.Goexit()
}

// A test may be skipped from within a namespace, that is, on another thread.
func TestSkippingInANamespaceSkips(t *testing.T) {
	for name, tc := range map[string]struct {
		do              func(e *ending) error
		skipped, failed bool
	}{
		"skipped":          {func(e *ending) error { e.SkipNow(); return nil }, true, false},
		"failed":           {func(e *ending) error { e.Fatalf("no"); return nil }, false, true},
		"returns an error": {func(*ending) error { return assert.AnError }, false, true},
		"succeeds":         {func(*ending) error { return nil }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			node := NewNamespace(t)
			e := &ending{}
			node.t = e
			ended := make(chan struct{})
			wentOn := false
			go func() {
				defer close(ended)
				node.Do(func() error { return tc.do(e) })
				wentOn = true
			}()
			<-ended
			assert.Equal(t, []bool{tc.skipped, tc.failed, !tc.skipped && !tc.failed},
				[]bool{e.Skipped(), e.Failed(), wentOn}, "%s", e.failed)
		})
	}
}
