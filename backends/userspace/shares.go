package userspace

import (
	"context"
	"slices"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// shares count how much of something service ports and namespaces have.
type shares struct {
	ports      map[model.PortName]*share
	namespaces map[string]*share
}

// share is what one service port has, or all ports of a namespace.
type share struct {
	port      model.PortName
	namespace *share // nil for a namespace
	taken     int
	users     int // holders of a pointer to this share
}

func newShares() shares {
	return shares{ports: map[model.PortName]*share{}, namespaces: map[string]*share{}}
}

// get returns the share of a port. The caller has to put it back.
func (s *shares) get(port model.PortName) *share {
	sh := s.ports[port]
	if sh == nil {
		namespace := s.namespaces[port.Service.Namespace]
		if namespace == nil {
			namespace = &share{}
			s.namespaces[port.Service.Namespace] = namespace
		}
		namespace.users++
		sh = &share{port: port, namespace: namespace}
		s.ports[port] = sh
	}
	sh.users++
	return sh
}

// put ends the use of a share.
func (s *shares) put(sh *share) {
	if sh.users--; sh.users > 0 {
		return
	}
	delete(s.ports, sh.port)
	if sh.namespace.users--; sh.namespace.users == 0 {
		delete(s.namespaces, sh.port.Service.Namespace)
	}
}

func (sh *share) add(n int) {
	sh.taken += n
	sh.namespace.taken += n
}

// places are a limited number of connections or listeners, which service ports share. A port may have no more of them
// than are left, and a namespace no more than three times as many: alone, a port can have half of them and a namespace
// three quarters. So nobody alone can take what others need. Switches share their buffers in the same way (dynamic
// thresholds).
type places struct {
	limit int

	mu      sync.Mutex
	shares  shares
	taken   int
	waiting []*waiter // none of them may have a place at present
}

// waiter is a port that waits for a place.
type waiter struct {
	share *share
	ready chan struct{} // closed when it has the place
}

func newPlaces(limit int) *places { return &places{limit: limit, shares: newShares()} }

// mayTake reports whether a port may have one more place.
func (p *places) mayTake(sh *share) bool {
	left := p.limit - p.taken
	return sh.taken < left && sh.namespace.taken < 3*left
}

func (p *places) add(sh *share, n int) {
	p.taken += n
	sh.add(n)
}

// tryTake takes a place for a port, or returns nil if it may not have one.
func (p *places) tryTake(port model.PortName) *share {
	p.mu.Lock()
	defer p.mu.Unlock()
	sh := p.shares.get(port)
	if !p.mayTake(sh) {
		p.shares.put(sh)
		return nil
	}
	p.add(sh, 1)
	return sh
}

// take takes a place for a port, and waits until it may have one. It returns nil if ctx ends first.
func (p *places) take(ctx context.Context, port model.PortName) *share {
	p.mu.Lock()
	sh := p.shares.get(port)
	if p.mayTake(sh) {
		p.add(sh, 1)
		p.mu.Unlock()
		return sh
	}
	w := &waiter{sh, make(chan struct{})}
	p.waiting = append(p.waiting, w)
	p.mu.Unlock()
	select {
	case <-w.ready:
		return sh
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiting, w)
	if i < 0 { // it got the place at the same moment
		return sh
	}
	p.waiting = slices.Delete(p.waiting, i, i+1)
	p.shares.put(sh)
	return nil
}

// release gives a place back, to the first of those waiting that may have it.
func (p *places) release(sh *share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(sh, -1)
	p.shares.put(sh)
	p.waiting = slices.DeleteFunc(p.waiting, func(w *waiter) bool {
		if !p.mayTake(w.share) {
			return false
		}
		p.add(w.share, 1)
		close(w.ready)
		return true
	})
}

// move has a place count against another port, whatever that has already.
func (p *places) move(sh *share, to model.PortName) *share {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sh.port == to {
		return sh
	}
	next := p.shares.get(to)
	sh.add(-1)
	next.add(1)
	p.shares.put(sh)
	return next
}
