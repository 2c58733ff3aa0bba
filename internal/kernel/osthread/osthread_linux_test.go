package osthread_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
)

// Functions that run at the same time have a thread each, which is not the process's first one, whichever threads the
// runtime had free.
func TestEachHasAThreadOfItsOwnAndNotTheFirst(t *testing.T) {
	const many = 64
	ids, done := make(chan int), make(chan struct{})
	for range many {
		osthread.Go(func() {
			ids <- unix.Gettid()
			<-done
		})
	}
	seen := map[int]bool{}
	for range many {
		seen[<-ids] = true
	}
	close(done)
	assert.Len(t, seen, many)
	assert.NotContains(t, seen, unix.Getpid())
}
