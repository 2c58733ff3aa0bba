package watch

import (
	"context"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hub shares the lists and watches of a Clientset among its runs. The first run to begin starts them, and the last one
// to end stops them.
type hub struct {
	watch func(context.Context, Handler) // what is shared

	lifecycle sync.Mutex // held while a run joins or leaves, and so while the watches start or stop
	stop      func()     // ends the watches and waits for them

	mu      sync.Mutex
	objects map[key]metav1.Object // for runs that join
	synced  bool
	runs    map[*sharedRun]struct{}
}

// sharedRun is a run that has joined. Changes that it has not handed over yet are pending, so that a slow handler does
// not delay others. There is at most one pending change for each object.
type sharedRun struct {
	nodeName string
	wake     chan struct{}

	// Guarded by the hub's mu.
	pending map[key]Change
	synced  bool // Synced has been called, or is about to be
}

// run delivers to h until ctx ends.
func (s *hub) run(ctx context.Context, nodeName string, h Handler) {
	r := &sharedRun{nodeName: nodeName, wake: make(chan struct{}, 1), pending: map[key]Change{}}
	s.join(ctx, r)
	defer s.leave(r)
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		changes, synced := s.take(r)
		if ctx.Err() != nil {
			return
		}
		if len(changes) > 0 {
			h.Update(changes...)
		}
		if synced {
			h.Synced()
		}
	}
}

// join adds a run, and begins to watch if it is the first.
func (s *hub) join(ctx context.Context, r *sharedRun) {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	s.mu.Lock()
	first := len(s.runs) == 0
	if first {
		s.objects, s.synced, s.runs = map[key]metav1.Object{}, false, map[*sharedRun]struct{}{}
	}
	s.runs[r] = struct{}{}
	for k, obj := range s.objects {
		r.add(k, Change{Object: obj})
	}
	r.signal()
	s.mu.Unlock()
	if !first {
		return
	}
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the run may end before others do
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.watch(watching, s)
	}()
	s.stop = func() {
		cancel()
		<-done
	}
}

// leave removes a run, and ends the watches if it was the last.
func (s *hub) leave(r *sharedRun) {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	s.mu.Lock()
	delete(s.runs, r)
	last := len(s.runs) == 0
	s.mu.Unlock()
	if last {
		s.stop()
		s.objects = nil
	}
}

// take returns the changes that a run has to hand over, and whether they complete the first list of everything.
func (s *hub) take(r *sharedRun) (changes []Change, synced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes = slices.Collect(maps.Values(r.pending))
	r.pending = map[key]Change{}
	synced = s.synced && !r.synced
	r.synced = s.synced
	return changes, synced
}

// Update implements Handler for the shared watches.
func (s *hub) Update(changes ...Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		kind, _ := kindOf(c.Object)
		k := key{kind, c.Object.GetNamespace(), c.Object.GetName()}
		if c.Deleted {
			delete(s.objects, k)
		} else {
			s.objects[k] = c.Object
		}
		for r := range s.runs {
			r.add(k, c)
		}
	}
	for r := range s.runs {
		if len(r.pending) > 0 {
			r.signal()
		}
	}
}

// Synced implements Handler for the shared watches.
func (s *hub) Synced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = true
	for r := range s.runs {
		r.signal()
	}
}

// add makes a change pending, unless it is about another node. It replaces a pending change of the same object.
func (r *sharedRun) add(k key, c Change) {
	if _, isNode := c.Object.(*corev1.Node); !isNode || wantsNode(r.nodeName, k.name) {
		r.pending[k] = c
	}
}

func (r *sharedRun) signal() {
	select {
	case r.wake <- struct{}{}:
	default: // it will look anyway
	}
}
