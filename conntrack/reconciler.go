package conntrack

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/refusals"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Options configures a [Reconciler]. The zero value is usable.
type Options struct {
	// Table is the table to clean up. Default: a [Kernel] for this process's network namespace.
	Table Table
	// Families are the IP families to clean up. Default: both.
	Families []model.Family
	// Addresses returns the node's addresses that serve node ports, for example [nodeaddr.Tracker.Addresses]: those
	// that the wrapped sink has or applies in its next Sync. Sync calls it twice, so it should not ask the kernel; it
	// should return the same slice until something changes. The caller of Sync should call it when the slice changes.
	//
	// Default: all addresses of the Table's network namespace if it is a [Kernel], otherwise of this process's. They are
	// read at every pass, so an address that the node gains starts none, but is noticed at the next one.
	Addresses func() nodeaddr.Addresses
	// LocalhostNodePorts says that the kernel rewrites what is sent to node ports on 127.0.0.0/8, too (S36). Otherwise
	// flows to loopback addresses that it does not rewrite are left alone: they are those of a program of the node, such
	// as a proxy that listens there (S36a).
	LocalhostNodePorts bool
	// Contests reports who owns an address and port that several service ports list (S59): then only the endpoints of
	// the owner count, otherwise those of all. It belongs to the wrapped sink. Default: the wrapped sink itself, if it is
	// a [sink.ContestReporter]; backends are, but middleware around them is not.
	Contests sink.ContestReporter
}

// Reconciler is a sink that removes stale UDP flows after each Sync of the sink that it wraps. See [Wrap].
type Reconciler struct {
	*sink.ServiceMemory // passes calls on to the wrapped sink, and keeps services
	opts                Options
	host                nodeaddr.Host // for Options.Addresses
	metrics             metrics

	// Only the goroutine that calls the sink's methods uses these fields and the first part of familyState.
	services map[model.ServiceName]*model.Service // those with UDP ports
	serving  map[model.PortName]targets
	refused  refusals.Ports // of UDP

	mu       sync.Mutex // guards the fields below and the second part of each familyState
	families []*familyState
	ctx      context.Context // of Wrap
	ended    chan struct{}   // closed when the worker ends; nil if it does not run
	// pausedUntil is the earliest time of the next pass, and sleepsUntil when the worker wakes up by itself.
	pausedUntil, sleepsUntil time.Time
	wake                     chan struct{} // wakes it earlier
}

// familyState is the state of one family.
type familyState struct {
	family model.Family
	// services may differ from the index; endpoints serve in only one of the two.
	services  map[model.ServiceName]struct{}
	endpoints map[model.EndpointKey]struct{}
	// contests were reported since the index was updated: the owner, or none if the contest is over.
	contests map[netip.AddrPort]model.PortName
	// resync: a pass is due after the next successful Sync, even without changes.
	resync bool
	failed bool // the last Sync failed in this family

	index     *index  // the applied state; nil before the first successful Sync, and without a table
	due       pending // flows for the next pass
	addresses nodeAddresses
	failures  int  // consecutive failed passes
	never     bool // there is no table
	retryAt   time.Time
}

var (
	_ sink.Sink            = (*Reconciler)(nil)
	_ sink.NodeSetter      = (*Reconciler)(nil)
	_ sink.Resyncer        = (*Reconciler)(nil)
	_ sink.FailureResyncer = (*Reconciler)(nil)
)

// Wrap returns a Sink that passes every call on to next. After a successful Sync, until ctx ends, it deletes UDP flows
// that have become stale. It logs to ctx's logger. next may be nil.
//
// # When there is a pass
//
// For each family: after the first successful Sync, so never before the state is complete; after a Sync that follows a
// ForceResync or, if the family had failed, a ResyncFailed; after [Reconciler.CheckAll]; and after changes that can
// make UDP flows stale (S20): a serving endpoint was removed, or the first one added; a service with UDP ports was
// added or removed; one gained or lost an address, a port or a node port; an address that several services list got
// another owner, or is no longer contested; a port was refused and no longer is; or the node gained an address that
// serves node ports. Changes are kept until a Sync succeeds for the family. The pass compares flows with the applied
// state: the state at the last successful Sync.
//
// After a small change the pass is narrow: it requests only the flows to added or removed addresses and node ports, to
// those with another owner, to removed endpoints and to gained addresses, up to four of these in all. It checks all
// flows after the first Sync, a ForceResync, a failed Sync or pass, or a bigger change.
//
// # Pace
//
// If there was no recent pass, a pass begins as soon as it is due. After it there is a pause of nine times its
// duration, at least 5 ms and at most 10 s; changes in the meantime are combined into one pass. So however often Sync
// is called, passes take a tenth of the time, and more only if one takes more than 1.1 s. The next pass deletes a stale
// flow, and begins at most 10 s after the end of the previous one. Flows to an address that the node gains and loses
// again and again are checked at once, then after pauses of a second, two, and so on up to a minute. If several
// families are due, their passes follow one another and count as one.
//
// # Goroutines
//
// Sync does not wait for the pass. At most one goroutine, started by Sync, runs the passes. It ends when none is due or
// ctx ends; the context of a Sync does not affect it. [Reconciler.Wait] waits for its end. A failed pass is logged and
// retried after a pause that grows from 1 s to 1 min. If the system has no such table (errors.ErrUnsupported), that is
// logged once and nothing more is tried.
//
// # Metrics
//
// Reconciler is a prometheus.Collector; its metrics are
//
//	kubeproxy_conntrack_reconciler_sync_duration_seconds{ip_family}
//	kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family}
func Wrap(ctx context.Context, next sink.Sink, opts Options) *Reconciler {
	if opts.Table == nil {
		opts.Table = &Kernel{}
	}
	host := &hostaddr.System{}
	if k, ok := opts.Table.(*Kernel); ok {
		host.NetNS = k.NetNS
	}
	r := &Reconciler{
		opts:     opts,
		host:     host,
		ctx:      ctx,
		metrics:  newMetrics(),
		wake:     make(chan struct{}, 1),
		services: map[model.ServiceName]*model.Service{},
		serving:  map[model.PortName]targets{},
		refused:  refusals.Ports{Counts: func(e *sink.PortError) bool { return e.Port.Protocol == model.UDP }},
	}
	r.ServiceMemory = sink.RememberServices(next, r.services, func(s *model.Service) bool {
		return slices.ContainsFunc(s.Ports, func(p model.ServicePort) bool { return p.Protocol == model.UDP })
	}, r.touch)
	for _, f := range model.Families() {
		if len(opts.Families) == 0 || slices.Contains(opts.Families, f) {
			r.families = append(r.families, &familyState{family: f, services: map[model.ServiceName]struct{}{},
				endpoints: map[model.EndpointKey]struct{}{}, contests: map[netip.AddrPort]model.PortName{}})
		}
	}
	if opts.Contests == nil {
		opts.Contests, _ = next.(sink.ContestReporter)
	}
	if opts.Contests != nil {
		opts.Contests.ReportContests(r.noteContest)
	}
	return r
}

// noteContest records who owns a contested address. The wrapped sink calls it in Sync. A contest that the index does
// not have is forgotten when it ends. Otherwise, a family that fails for days would keep all contests of that time.
func (r *Reconciler) noteContest(c sink.Contest) {
	for _, f := range r.families {
		switch {
		case f.family != c.Family || c.Protocol != model.UDP:
		case c.Owner == (model.PortName{}) && (f.index == nil || !f.index.isContested(c.Destination)):
			delete(f.contests, c.Destination)
		default:
			f.contests[c.Destination] = c.Owner
		}
	}
}

// ForceResync implements [sink.Resyncer]: a pass is due after the next Sync.
func (r *Reconciler) ForceResync() {
	for _, f := range r.families {
		f.resync = true
	}
	r.Forward.ForceResync()
}

// ResyncFailed implements [sink.FailureResyncer]: a pass is due after the next Sync, in the families that failed.
func (r *Reconciler) ResyncFailed() {
	for _, f := range r.families {
		f.resync = f.resync || f.failed
	}
	r.Forward.ResyncFailed()
}

// CheckAll makes a pass over all flows of a family due: for backends that repair rules without a Sync. Flows that began
// while the rules were gone are not rewritten. It may be called from any goroutine, and does nothing before the first
// Sync and while the family fails: there is such a pass after the next successful one.
func (r *Reconciler) CheckAll(family model.Family) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.families {
		if f.family == family && f.index != nil && !f.failed {
			f.due.addAll()
		}
	}
	r.startWork()
}

// SetEndpoint implements [sink.Sink].
func (r *Reconciler) SetEndpoint(e *model.Endpoint) {
	r.Forward.SetEndpoint(e)
	if e == nil {
		return
	}
	if !serves(e) {
		r.deleteEndpoint(e.Key())
		return
	}
	if e.Port.Protocol != model.UDP {
		return
	}
	if r.serving[e.Port] == nil {
		r.serving[e.Port] = targets{}
	}
	r.serving[e.Port][e.Target] = struct{}{}
	r.touchEndpoint(e.Key())
}

// serves reports whether existing flows to an endpoint may continue. An endpoint in a set gets new flows, whatever its
// conditions.
func serves(e *model.Endpoint) bool { return e.Serving || e.Sets != 0 }

// DeleteEndpoint implements [sink.Sink].
func (r *Reconciler) DeleteEndpoint(key model.EndpointKey) {
	r.Forward.DeleteEndpoint(key)
	r.deleteEndpoint(key)
}

func (r *Reconciler) deleteEndpoint(key model.EndpointKey) {
	if !r.serving[key.Port].has(key.Target) {
		return
	}
	if delete(r.serving[key.Port], key.Target); len(r.serving[key.Port]) == 0 {
		delete(r.serving, key.Port)
	}
	r.touchEndpoint(key)
}

func (r *Reconciler) touch(name model.ServiceName) {
	for _, f := range r.families {
		if r.services[name] != nil || f.index != nil && f.index.services[name] != nil {
			f.services[name] = struct{}{}
		} else {
			delete(f.services, name)
		}
	}
}

// touchEndpoint compares an endpoint with the index. The index changes only in Sync, so it needs no lock.
func (r *Reconciler) touchEndpoint(key model.EndpointKey) {
	for _, f := range r.families {
		switch {
		case f.family != model.FamilyOf(key.Target.Addr()) || f.index == nil: // a new index will have new ports
		case r.serving[key.Port].has(key.Target) != f.index.serves(key):
			f.endpoints[key] = struct{}{}
		default:
			delete(f.endpoints, key)
		}
	}
}

// Sync implements [sink.Sink]. It returns what the wrapped sink returns.
func (r *Reconciler) Sync(ctx context.Context) error {
	var before, after nodeaddr.Addresses
	if r.opts.Addresses != nil {
		before = r.opts.Addresses()
	}
	err := r.Forward.Sync(ctx)
	if r.opts.Addresses != nil {
		after = r.opts.Addresses()
	}
	failed := sink.FailedFamilies(err)
	wereRefused := r.refused // Note makes a new list
	changed := r.refused.Note(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.families {
		failedBefore := f.failed
		f.failed = failed.Has(f.family)
		if f.never { // otherwise removed services would be kept forever
			f.index = nil
			continue
		}
		if f.failed {
			continue
		}
		if r.apply(f); f.resync || failedBefore {
			f.due.addAll() // it is unknown what a failed Sync had applied
		}
		f.resync = false
		for _, name := range changed {
			f.index.selectAccepted(name, f.family, wereRefused.Of(name), r.refused.Of(name), &f.due)
		}
		if r.opts.Addresses != nil {
			r.noteAddresses(f, before, after)
		}
	}
	r.startWork()
	return err
}

// apply updates a family's index with the described state, and records which flows to check.
func (r *Reconciler) apply(f *familyState) {
	if f.index == nil {
		f.index = newIndex()
		f.due.addAll()
	}
	for name := range f.services {
		f.index.set(name, udpServiceOf(r.services[name], f.family), func(port model.PortName) targets {
			ofFamily := targets{}
			for target := range r.serving[port] {
				if model.FamilyOf(target.Addr()) == f.family {
					ofFamily[target] = struct{}{}
				}
			}
			return ofFamily
		}, &f.due)
	}
	for key := range f.endpoints { // before the removed ones, so that a port never lacks endpoints in between
		if r.serving[key.Port].has(key.Target) {
			f.index.setServing(key, &f.due)
		}
	}
	for key := range f.endpoints {
		if !r.serving[key.Port].has(key.Target) {
			f.index.deleteServing(key, &f.due)
		}
	}
	for d, owner := range f.contests {
		f.index.setOwner(d, owner, &f.due)
	}
	emptied(&f.services)
	emptied(&f.endpoints)
	emptied(&f.contests)
}

// emptied empties a map. Clearing a map takes time in proportion to its largest size, so a large one is replaced.
func emptied[K comparable, V any](m *map[K]V) {
	if len(*m) > 64 {
		*m = map[K]V{}
	} else {
		clear(*m)
	}
}
