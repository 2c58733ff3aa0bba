package userspace

import (
	"cmp"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

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

	// Only a pool uses these.
	slots   map[*slot]bool
	clients map[netip.Addr]int // slots of each; of a port only
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
			namespace = &share{slots: map[*slot]bool{}}
			s.namespaces[port.Service.Namespace] = namespace
		}
		namespace.users++
		sh = &share{port: port, namespace: namespace, slots: map[*slot]bool{}, clients: map[netip.Addr]int{}}
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

// listenerQuota limits the number of listeners, which service ports share. A port may have no more of them than are
// left, and a namespace no more than three times as many: alone, a port can have half of them and a namespace three
// quarters. So nobody alone can take what others need. Switches share their buffers in the same way (dynamic
// thresholds).
type listenerQuota struct {
	limit  int
	shares shares
	taken  int
}

func newListenerQuota(limit int) *listenerQuota {
	return &listenerQuota{limit: limit, shares: newShares()}
}

// take counts a listener of a port, or returns nil if it may not have another one.
func (q *listenerQuota) take(port model.PortName) *share {
	sh, left := q.shares.get(port), q.limit-q.taken
	if sh.taken >= left || sh.namespace.taken >= 3*left {
		q.shares.put(sh)
		return nil
	}
	q.taken++
	sh.add(1)
	return sh
}

// release makes a listener count no longer. sh is what take or move returned for it.
func (q *listenerQuota) release(sh *share) {
	q.taken--
	sh.add(-1)
	q.shares.put(sh)
}

// move makes a listener count against another port, whatever that has already.
func (q *listenerQuota) move(sh *share, to model.PortName) *share {
	if sh.port == to {
		return sh
	}
	next := q.shares.get(to)
	sh.add(-1)
	next.add(1)
	q.shares.put(sh)
	return next
}

// pool is a limited number of slots for TCP connections or UDP flows. While there are free slots, everybody gets one.
// After that a newcomer gets a slot of a client that has more: of the namespace with most slots, in it of the port with
// most, in that of the client with most. Among equals a slot changes hands only if it has been idle for minIdle. So a
// flood costs the service that it is for, and never one that has less.
type pool struct {
	limit   int
	minIdle time.Duration
	full    logLimiter

	mu     sync.Mutex
	shares shares
	slots  map[*slot]bool
}

// slot is the right to one connection or flow.
type slot struct {
	client netip.Addr
	share  *share // of its port
	used   atomic.Int64
	// end begins to end the connection or flow. It is called with the pool's lock held, and does not wait.
	end func()
}

func newPool(limit int, minIdle time.Duration) *pool {
	return &pool{limit: limit, minIdle: minIdle, shares: newShares(), slots: map[*slot]bool{}}
}

// logPause is the time between log lines about what all listeners find out at the same time.
const logPause = 10 * time.Second

// logLimiter says when something may be logged again.
type logLimiter struct{ last atomic.Int64 } // Unix nanoseconds

func (l *logLimiter) due(now time.Time) bool {
	last := l.last.Load()
	return now.Sub(time.Unix(0, last)) >= logPause && l.last.CompareAndSwap(last, now.UnixNano())
}

// slotFor returns a slot for a connection or a flow, nil if there is none. end begins to end it.
func (b *Backend) slotFor(p *pool, port model.PortName, client netip.Addr, end func()) *slot {
	s, replaced := p.take(port, client, end)
	if s != nil && replaced == nil || !p.full.due(time.Now()) {
		return s
	}
	log := klog.FromContext(b.ctx).WithValues("port", port, "client", client, "limit", p.limit)
	if replaced != nil {
		log = log.WithValues("replaced", replaced.share.port, "replacedClient", replaced.client)
	}
	switch {
	case p == b.flows: // among which a newcomer always finds one to replace
		log.Info("Flow limit reached: new flows replace others")
	case s == nil:
		log.Info("Connection limit reached: new connections are reset")
	default:
		log.Info("Connection limit reached: new connections replace others")
	}
	return s
}

// touch notes that there is traffic.
func (s *slot) touch() { s.used.Store(time.Now().UnixNano()) }

func (s *slot) lastUsed() time.Time { return time.Unix(0, s.used.Load()) }

// take takes a slot, which may be that of another one: replaced. It returns nil if everybody else has a better claim.
func (p *pool) take(port model.PortName, client netip.Addr, end func()) (s, replaced *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s = &slot{client: client, share: p.shares.get(port), end: end}
	s.touch()
	if len(p.slots) >= p.limit {
		if replaced = p.victim(s); replaced == nil {
			p.shares.put(s.share)
			return nil, nil
		}
		replaced.end()
		p.remove(replaced)
	}
	s.share.add(1)
	s.share.clients[client]++
	for _, slots := range p.setsOf(s) {
		slots[s] = true
	}
	return s, replaced
}

// release gives a slot back, unless another client has taken it over.
func (p *pool) release(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots[s] {
		p.remove(s)
	}
}

func (p *pool) remove(s *slot) {
	for _, slots := range p.setsOf(s) {
		delete(slots, s)
	}
	if s.share.clients[s.client]--; s.share.clients[s.client] == 0 {
		delete(s.share.clients, s.client)
	}
	s.share.add(-1)
	p.shares.put(s.share)
}

// setsOf returns the sets that a slot belongs to: of all, of its namespace, and of its port.
func (p *pool) setsOf(s *slot) [3]map[*slot]bool {
	return [3]map[*slot]bool{p.slots, s.share.namespace.slots, s.share.slots}
}

// victim returns the slot that a newcomer gets. The client with most is looked for among all, then in the newcomer's
// own namespace, then in its own port.
func (p *pool) victim(s *slot) *slot {
	for _, slots := range p.setsOf(s) {
		if v := biggest(slots); v != nil && p.yields(v, s) {
			return v
		}
	}
	return nil
}

// evictFrom is the number of slots, or of clients with affinity, among which a victim is looked for when there are too
// many. The client with most of all slots has most of these, too. Checking all of them would make every newcomer slow.
const evictFrom = 16

// biggest returns, among a few slots, one of the client with most: the one idle for longest.
func biggest(slots map[*slot]bool) (victim *slot) {
	seen := 0
	for s := range slots {
		if victim == nil || s.compare(victim) > 0 {
			victim = s
		}
		if seen++; seen == evictFrom {
			break
		}
	}
	return victim
}

// compare orders slots: those that should be given up first come last.
func (s *slot) compare(t *slot) int {
	return cmp.Or(
		cmp.Compare(s.share.namespace.taken, t.share.namespace.taken),
		cmp.Compare(s.share.taken, t.share.taken),
		cmp.Compare(s.share.clients[s.client], t.share.clients[t.client]),
		cmp.Compare(t.used.Load(), s.used.Load()))
}

// yields reports whether slot v goes to the newcomer s. One slot more is not enough: afterwards the newcomer would be
// the one with more.
func (p *pool) yields(v, s *slot) bool {
	switch {
	case v.share.namespace != s.share.namespace:
		return v.share.namespace.taken > s.share.namespace.taken+1
	case v.share != s.share && v.share.taken > s.share.taken+1,
		v.share == s.share && v.share.clients[v.client] > s.share.clients[s.client]+1:
		return true
	}
	return time.Since(v.lastUsed()) >= p.minIdle
}
