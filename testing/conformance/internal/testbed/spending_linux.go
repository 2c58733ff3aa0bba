package testbed

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// Spending counts the processor time of the judge and its programs.
type Spending struct {
	mu    sync.Mutex
	ended time.Duration                  // of programs that were started again, and of hosts that are gone
	most  map[program.Host]time.Duration // of those that may run
}

// Add begins to count a host's programs. The returned function ends it.
func (s *Spending) Add(h program.Host) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most == nil {
		s.most = map[program.Host]time.Duration{}
	}
	s.most[h] = 0
	return func() {
		s.started(h)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.most, h)
	}
}

// started notes that a host's program has been started: its time has begun at 0.
func (s *Spending) started(h program.Host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if most, counted := s.most[h]; counted {
		s.ended += most
		s.most[h] = 0
	}
}

// Total returns the time so far.
func (s *Spending) Total() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := judgesOwn()
	for h, most := range s.most {
		now, _ := h.Usage()
		s.most[h] = max(most, now) // it drops briefly when a child exits, because its time is rounded
		sum += s.most[h]
	}
	return sum + s.ended
}

// judgesOwn returns the processor time of this process.
func judgesOwn() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
