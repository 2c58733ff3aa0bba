package brain

import (
	"fmt"
	"sync/atomic"
	"time"
)

// fresh returns why the server may not be up to date: then Ready fails, and clients get no heartbeats. It does not wait
// for what may hang.
func (s *Server) fresh() error {
	if age := s.publishing.age(); age > s.opts.limits.maxPublish {
		return fmt.Errorf("it has been publishing a revision for %v", age)
	}
	if kind, age, quiet := s.silence(); age > s.opts.limits.maxSilence+quiet {
		return fmt.Errorf("the API server has said nothing of kind %s for %v", kind, age)
	}
	return nil
}

// silence returns which kind of object the source has said nothing of for longest, and for how long, 0 if that is not
// known. Without bookmarks it may say nothing for longer, by quiet.
func (s *Server) silence() (kind string, age, quiet time.Duration) {
	kind, at, quiet := s.heard.Oldest()
	if at.IsZero() {
		return kind, 0, 0
	}
	return kind, time.Since(at), quiet
}

// since is a time that any goroutine may set and ask for.
type since struct{ at atomic.Pointer[time.Time] }

func (s *since) set(at time.Time) { s.at.Store(&at) }

func (s *since) clear() { s.at.Store(nil) }

// age is how long ago it was, 0 if it has not been set.
func (s *since) age() time.Duration {
	if at := s.at.Load(); at != nil {
		return time.Since(*at)
	}
	return 0
}
