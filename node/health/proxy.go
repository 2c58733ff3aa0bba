package health

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

const defaultLimit = 60 * time.Second

// Proxy is the health of a service proxy. Its methods may be called at any time from any goroutine.
//
// # Healthy
//
// The proxy is unhealthy if in any family a change has waited for the limit of New or longer. A family that has never
// been applied does not count: a proxy that starts is healthy. Its /healthz answers 503 nevertheless, see
// [Proxy.SetFamilies].
//
// # Eligible
//
// The node is eligible for load balancers' traffic unless [model.Node.NotEligible]; before SetNode, too. While the
// proxy waits for the node's podCIDRs it is not, see [AwaitingNodeCIDR].
//
// # Metrics
//
// Proxy is a prometheus.Collector: register it with your prometheus.Registerer to have
//
//	kubeproxy_proxy_healthz_total{code}
//	kubeproxy_proxy_livez_total{code}
//	kubeproxy_disconnected_since_timestamp_seconds
//	kubeproxy_restored_state_timestamp_seconds
type Proxy struct {
	limit          time.Duration
	notEligible    atomic.Bool
	healthz, livez *prometheus.CounterVec
	metrics        []prometheus.Collector // these, and gauges of lost and restored

	lost, restored moment
	wentBack       moment // when an older state was last taken
	nodeMissing    atomic.Bool

	mu       sync.Mutex // guards what follows
	phase    Phase
	families model.PerFamily[family]
	served   model.FamilySet // 0: not known
}

var _ sink.NodeSetter = (*Proxy)(nil)

// New returns the health of a proxy that is starting. limit is how long a change may wait until it is applied; 0 means
// 60 s, twice kube-proxy's default sync period.
func New(limit time.Duration) *Proxy {
	if limit <= 0 {
		limit = defaultLimit
	}
	p := &Proxy{limit: limit}
	p.addMetrics()
	return p
}

// moment is a time that any goroutine may set and ask for. The zero value is no time.
type moment struct{ at atomic.Pointer[time.Time] }

func (m *moment) set(at time.Time) { m.at.Store(&at) }

func (m *moment) get() time.Time {
	if at := m.at.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// SetDisconnected sets the time since which nothing has come from the API server, or from the server that computes the
// state; the zero time means that it is connected. A disconnected proxy stays healthy, because what is applied keeps
// serving, but the answers say that it is disconnected.
func (p *Proxy) SetDisconnected(since time.Time) { p.lost.set(since) }

// DisconnectedSince returns the time that SetDisconnected set.
func (p *Proxy) DisconnectedSince() time.Time { return p.lost.get() }

// SetWentBack records that the proxy has taken a state from a server that may be older than the one before. It stays
// healthy, but the answers say when that was.
func (p *Proxy) SetWentBack(at time.Time) { p.wentBack.set(at) }

// WentBack returns the time that SetWentBack last set, zero if none.
func (p *Proxy) WentBack() time.Time { return p.wentBack.get() }

// SetRestored sets the time of the state that is in use if it comes from a file, because no server has been reached
// since the start; the zero time means that it does not. Such a proxy is as healthy as a disconnected one.
func (p *Proxy) SetRestored(from time.Time) { p.restored.set(from) }

// RestoredFrom returns the time that SetRestored set.
func (p *Proxy) RestoredFrom() time.Time { return p.restored.get() }

// SetNodeMissing sets whether there is no Node with this node's name, so that the name is probably wrong. Health does
// not depend on it, but the answers report it.
func (p *Proxy) SetNodeMissing(missing bool) { p.nodeMissing.Store(missing) }

// NodeMissing returns what SetNodeMissing set.
func (p *Proxy) NodeMissing() bool { return p.nodeMissing.Load() }

// Phase is a step of a proxy's startup.
type Phase int

const (
	// Listing: the cluster has not been listed completely yet, so nothing is applied.
	Listing Phase = iota
	// AwaitingNodeCIDR: everything has been listed, but the Node does not have the podCIDRs yet that are needed to
	// detect local traffic. Nothing is applied until it has (S48).
	AwaitingNodeCIDR
	// Serving: the state is applied as it changes.
	Serving
)

// String returns the phase in words.
func (p Phase) String() string {
	switch p {
	case Listing:
		return "listing"
	case AwaitingNodeCIDR:
		return "awaiting the node's podCIDRs"
	}
	return "serving"
}

// Family is the health of one IP family. A zero time means never, or nothing.
type Family struct {
	// LastQueued is when the latest change arrived that may concern the family.
	LastQueued time.Time
	// OldestPending is when the oldest change arrived that is not applied yet.
	OldestPending time.Time
	// LastApplied is when the last Sync that applied the family ended.
	LastApplied time.Time
	// Healthy: no change has waited for the limit of New or longer, or nothing has been applied yet (S39a).
	Healthy bool
}

// family has the two times that Family.OldestPending is computed from.
type family struct {
	lastQueued, lastApplied time.Time
	queuedSince             time.Time // the oldest change that no Sync has seen
	inFlightSince           time.Time // the oldest change that a Sync has seen, but not applied
}

func (f *family) health(now time.Time, limit time.Duration) Family {
	h := Family{LastQueued: f.lastQueued, OldestPending: f.inFlightSince, LastApplied: f.lastApplied}
	if h.OldestPending.IsZero() {
		h.OldestPending = f.queuedSince
	}
	h.Healthy = h.LastApplied.IsZero() || h.OldestPending.IsZero() || now.Sub(h.OldestPending) < limit
	return h
}

// Family returns the health of a family, now.
func (p *Proxy) Family(f model.Family) Family { return p.familyAt(f, time.Now()) }

func (p *Proxy) familyAt(f model.Family, now time.Time) Family {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.families.At(f).health(now, p.limit)
}

// Healthy reports whether the proxy is healthy, whether or not the node is eligible.
func (p *Proxy) Healthy() bool {
	now := time.Now()
	for _, f := range model.Families() {
		if !p.familyAt(f, now).Healthy {
			return false
		}
	}
	return true
}

// SetFamilies sets the IP families that the proxy serves, all of which must have been applied before Healthz answers
// 200. Without it, one is enough. The root package's Run sets those of its feed.
func (p *Proxy) SetFamilies(families []model.Family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.served = 0
	for _, f := range families {
		p.served |= f.Set()
	}
}

// serves reports whether every family that the proxy serves has been applied since the start.
func (p *Proxy) serves() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var applied model.FamilySet
	for _, f := range model.Families() {
		if !p.families.At(f).lastApplied.IsZero() {
			applied |= f.Set()
		}
	}
	return applied != 0 && applied&p.served == p.served
}

// Phase returns the current phase.
func (p *Proxy) Phase() Phase {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase
}

// SetPhase sets the current phase.
func (p *Proxy) SetPhase(phase Phase) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase = phase
}

// Queued records that a change arrived at the given time.
func (p *Proxy) Queued(f model.Family, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.families.At(f)
	s.lastQueued = at
	if s.queuedSince.IsZero() {
		s.queuedSince = at
	}
}

// Flushed records that all changes so far have been handed to the sink.
func (p *Proxy) Flushed(f model.Family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.families.At(f)
	if s.inFlightSince.IsZero() {
		s.inFlightSince = s.queuedSince
	}
	s.queuedSince = time.Time{}
}

// Applied records that everything handed over has been applied, by a Sync that ended at the given time.
func (p *Proxy) Applied(f model.Family, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.families.At(f)
	s.inFlightSince, s.lastApplied = time.Time{}, at
}

// Unchanged records that the changes made no difference: there is nothing to apply.
func (p *Proxy) Unchanged(f model.Family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.families.At(f).inFlightSince = time.Time{}
}

// SetNode sets the node. It implements [sink.NodeSetter]; [Proxy.Sink] is a whole sink.
func (p *Proxy) SetNode(node *model.Node) { p.notEligible.Store(node != nil && node.NotEligible) }

// Sink returns a sink that passes the node on to the Proxy and ignores everything else, to go into a [sink.Tee].
func (p *Proxy) Sink() sink.Sink { return nodeSink{sink.NewForward(nil), p} }

type nodeSink struct {
	*sink.Forward
	proxy *Proxy
}

// SetNode implements [sink.NodeSetter].
func (s nodeSink) SetNode(node *model.Node) { s.proxy.SetNode(node) }
