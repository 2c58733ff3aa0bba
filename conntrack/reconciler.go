package conntrack

import (
	"context"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Options configures a [Reconciler]. The zero value is usable.
type Options struct {
	// Table is the table to clean up. Default: a [Kernel] for this process's network namespace.
	Table Table
	// Families are the IP families to clean up. Default: both.
	Families []model.Family
	// Addresses returns the addresses of this node that serve node ports, for example [nodeaddr.Tracker.Addresses]. It
	// is called at every pass, from a goroutine of the Reconciler. Default: all addresses of the Table's network
	// namespace, if that is a [Kernel], otherwise of this process's.
	Addresses func() nodeaddr.Addresses
}

// Reconciler is a sink that cleans up stale UDP flows after the sink that it wraps. See [Wrap].
type Reconciler struct {
	// Forward passes calls on to the wrapped sink, including the optional ones.
	*sink.Forward
	opts    Options
	host    nodeaddr.Host // for Options.Addresses
	metrics metrics

	// Only the goroutine that calls the Sink's methods uses these fields, and the first part of familyState.
	services map[model.ServiceName]*model.Service // those with UDP ports
	serving  map[model.PortName]targets

	mu       sync.Mutex // guards the rest, and the familyStates' other parts
	families []*familyState
	ctx      context.Context // of Wrap
	ended    chan struct{}   // closed when the worker ends; nil if there is none
}

// familyState is the state of one family.
type familyState struct {
	family model.Family
	// services are those that may differ from the index; endpoints are those that serve in only one of the two.
	services  map[model.ServiceName]struct{}
	endpoints map[model.EndpointKey]struct{}
	// resync: a pass is due after the next successful Sync, whatever it changes.
	resync bool
	failed bool // the last Sync, in this family

	index    *index  // what is applied; nil before the first successful Sync, and without a table
	due      pending // what the next pass looks at
	failures int     // passes that failed in a row
	never    bool    // there is no table
	retryAt  time.Time
}

var (
	_ sink.Sink            = (*Reconciler)(nil)
	_ sink.NodeSetter      = (*Reconciler)(nil)
	_ sink.Resyncer        = (*Reconciler)(nil)
	_ sink.FailureResyncer = (*Reconciler)(nil)
)

// Wrap returns a Sink that passes every call on to next and, after a successful Sync, deletes the UDP flows that have
// become stale, until ctx ends. It logs to ctx's logger. next may be nil.
//
// # When there is a pass
//
// For each family: after the first Sync that succeeds, hence never before the state is complete; after one that follows
// a ForceResync or, if the family had failed, a ResyncFailed; and after one with changes that can have made UDP flows
// stale (S20): a serving endpoint was removed, or the first one added; a service with UDP ports was added or removed;
// or one gained or lost an address, a port or a node port. What changed is remembered until a Sync succeeds for the
// family. The pass compares with what is applied: what was described at the last successful Sync.
//
// After a small change the pass is narrow: it asks the kernel for the flows to the addresses and node ports that were
// added or removed, and for those to removed endpoints, up to four of these together. It looks at all flows after the
// first Sync, a ForceResync, a Sync or a pass that failed, or a bigger change.
//
// # Goroutines
//
// Sync does not wait for the pass. One goroutine at most, started by Sync, does one pass after the other and ends when
// none is due, or with ctx; the context of a Sync does not matter to it. [Reconciler.Wait] waits for that. A pass that
// fails is logged and tried again after a pause that grows from 1 s to 1 min. If the system has no such table
// (errors.ErrUnsupported), that is logged once, and nothing more is tried.
//
// # Metrics
//
// Reconciler is a prometheus.Collector: register it with your prometheus.Registerer to have
//
//	kubeproxy_conntrack_reconciler_sync_duration_seconds{ip_family}
//	kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family}
func Wrap(ctx context.Context, next sink.Sink, opts Options) *Reconciler {
	if opts.Table == nil {
		opts.Table = &Kernel{}
	}
	host := &nodeaddr.System{}
	if k, ok := opts.Table.(*Kernel); ok {
		host.NetNS = k.NetNS
	}
	r := &Reconciler{
		Forward:  sink.NewForward(next),
		opts:     opts,
		host:     host,
		ctx:      ctx,
		metrics:  newMetrics(),
		services: map[model.ServiceName]*model.Service{},
		serving:  map[model.PortName]targets{},
	}
	for _, f := range model.Families() {
		if len(opts.Families) == 0 || slices.Contains(opts.Families, f) {
			r.families = append(r.families, &familyState{family: f, services: map[model.ServiceName]struct{}{},
				endpoints: map[model.EndpointKey]struct{}{}})
		}
	}
	return r
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

// SetService implements [sink.Sink].
func (r *Reconciler) SetService(service *model.Service) {
	r.Forward.SetService(service)
	if service == nil {
		return
	}
	if slices.ContainsFunc(service.Ports, func(p model.ServicePort) bool { return p.Protocol == model.UDP }) {
		r.services[service.Name] = service
		r.touch(service.Name)
	} else {
		r.deleteService(service.Name)
	}
}

// DeleteService implements [sink.Sink].
func (r *Reconciler) DeleteService(name model.ServiceName) {
	r.Forward.DeleteService(name)
	r.deleteService(name)
}

func (r *Reconciler) deleteService(name model.ServiceName) {
	if r.services[name] != nil {
		delete(r.services, name)
		r.touch(name)
	}
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

// serves reports whether flows to an endpoint may go on. New flows go to an endpoint that is in a set, whatever its
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
		if r.services[name] != nil || f.index != nil && len(f.index.services[name]) > 0 {
			f.services[name] = struct{}{}
		} else {
			delete(f.services, name)
		}
	}
}

// touchEndpoint compares an endpoint with what is in the index. Only Sync writes what it reads there.
func (r *Reconciler) touchEndpoint(key model.EndpointKey) {
	for _, f := range r.families {
		switch {
		case f.family != model.FamilyOf(key.Target.Addr()) || f.index == nil: // then the ports are new as well
		case r.serving[key.Port].has(key.Target) != f.index.serves(key):
			f.endpoints[key] = struct{}{}
		default:
			delete(f.endpoints, key)
		}
	}
}

// Sync implements [sink.Sink]. It returns what the wrapped sink returns.
func (r *Reconciler) Sync(ctx context.Context) error {
	err := r.Forward.Sync(ctx)
	failed := sink.FailedFamilies(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.families {
		failedBefore := f.failed
		f.failed = failed.Has(f.family)
		if f.never { // otherwise removed services would be remembered forever
			f.index = nil
			continue
		}
		if f.failed {
			continue
		}
		if r.apply(f); f.resync || failedBefore {
			f.due.addAll() // it is not known what a failed Sync had applied
		}
		f.resync = false
	}
	if r.nextDue() != nil && r.ended == nil && r.ctx.Err() == nil {
		r.ended = make(chan struct{})
		go r.work()
	}
	return err
}

// apply updates the index of a family with what has been described, and notes which flows have to be checked.
func (r *Reconciler) apply(f *familyState) {
	if f.index == nil {
		f.index = newIndex()
		f.due.addAll()
	}
	for name := range f.services {
		f.index.set(name, udpPorts(r.services[name], f.family), func(port model.PortName) targets {
			ofFamily := targets{}
			for target := range r.serving[port] {
				if model.FamilyOf(target.Addr()) == f.family {
					ofFamily[target] = struct{}{}
				}
			}
			return ofFamily
		}, &f.due)
	}
	for key := range f.endpoints { // before the removed ones, so that a port is not without any in between
		if r.serving[key.Port].has(key.Target) {
			f.index.setServing(key, &f.due)
		}
	}
	for key := range f.endpoints {
		if !r.serving[key.Port].has(key.Target) {
			f.index.deleteServing(key, &f.due)
		}
	}
	emptied(&f.services)
	emptied(&f.endpoints)
}

// emptied empties a map. Clearing a large one costs as much as it ever held, so a new one takes its place.
func emptied[K comparable](m *map[K]struct{}) {
	if len(*m) > 64 {
		*m = map[K]struct{}{}
	} else {
		clear(*m)
	}
}
