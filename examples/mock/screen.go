package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
)

// screen prints the backend's whole table at first, and then every change.
type screen struct {
	*backend
	out    io.Writer
	listed chan struct{} // closed when the first table has been printed
	syncs  atomic.Int64
	mu     sync.Mutex // guards the backend's table, which Sync changes
}

// Sync passes the call on. The first time it prints the whole table instead of the changes.
func (s *screen) Sync(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.syncs.Add(1)
	if err := s.backend.Sync(ctx); err != nil || s.syncs.Load() > 0 {
		return err
	}
	fmt.Fprintf(s.out, "The routing table of node %s:\n\n", s.backend.node.Name)
	s.backend.out = s.out
	defer close(s.listed)
	return s.backend.printTable(s.out)
}

// printTable prints the table while no Sync changes it.
func (s *screen) printTable(w io.Writer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backend.printTable(w)
}

// lockedWriter may be used concurrently, for one line at a time.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
