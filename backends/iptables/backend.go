package iptables

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Backend is a [sink.Sink] whose Sync puts services in force with iptables. It is also a [sink.NodeSetter] and a
// [sink.Resyncer]. Its methods are called from one goroutine at a time, as those of every sink, except Close and CleanUp,
// which may be called from any.
type Backend struct {
	options    Options
	machine    *machine
	dataplanes []dp.Interface // the backend's own to close

	// What was described, and what of it changed since the last Sync.
	node     *model.Node
	services map[model.ServiceName]*described
	changed  map[model.ServiceName]*described

	mu       sync.Mutex // guards the families
	families []*family
	started  bool // something of ours may be in force, and is to be repaired

	stop  context.CancelFunc
	done  chan struct{}
	close func() error
}

var (
	_ sink.Sink            = (*Backend)(nil)
	_ sink.NodeSetter      = (*Backend)(nil)
	_ sink.Resyncer        = (*Backend)(nil)
	_ sink.FailureResyncer = (*Backend)(nil)
)

// New returns a backend, after it has found the programs that it needs. It changes nothing until the first Sync. When others
// change its chains it repairs them, in the background, until ctx ends or Close is called; it logs with ctx's logger. ctx does
// not bound calls of Sync.
func New(ctx context.Context, o Options) (*Backend, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	b := &Backend{options: o.withDefaults(), machine: newMachine(o.Sysctls), done: make(chan struct{}),
		services: map[model.ServiceName]*described{}, changed: map[model.ServiceName]*described{}}
	given := o.Dataplanes
	if given == nil {
		var err error
		if b.dataplanes, err = newDataplanes(ctx, o); err != nil {
			return nil, fmt.Errorf("iptables: %w", err)
		}
		given = b.dataplanes
	}
	for _, d := range given {
		b.families = append(b.families, newFamily(d, b))
	}
	var families []model.Family
	for _, f := range b.families {
		families = append(families, f.features.Family)
	}
	metrics := newMetrics(families)
	for _, f := range b.families {
		f.all, f.metrics, f.resync = b.families, metrics, true
	}
	unregister, err := metrics.Register(o.Metrics)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("iptables: %w", err), closeAll(b.dataplanes))
	}
	b.close = sync.OnceValue(func() error {
		unregister()
		return closeAll(b.dataplanes)
	})
	ctx, b.stop = context.WithCancel(ctx)
	go b.watch(ctx)
	return b, nil
}

// newDataplanes finds the programs for the families that are asked for or, if none is, those that the machine can do.
func newDataplanes(ctx context.Context, o Options) ([]dp.Interface, error) {
	families := o.Families
	if families == nil {
		all := model.Families()
		families = all[:]
	}
	var found []dp.Interface
	for _, f := range families {
		d, err := dp.New(ctx, dp.Options{Family: f, Variant: o.Variant})
		if err == nil {
			found = append(found, d)
			continue
		}
		if o.Families == nil && f == model.IPv6 && dp.IsAbsent(err) {
			klog.FromContext(ctx).Info("Serving IPv4 only, this machine cannot do IPv6", "reason", err)
			continue
		}
		return nil, errors.Join(err, closeAll(found))
	}
	return found, nil
}

func closeAll(dataplanes []dp.Interface) error {
	var errs []error
	for _, d := range dataplanes {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// SetNode implements [sink.NodeSetter].
func (b *Backend) SetNode(node *model.Node) { b.node = node }

// SetService implements [sink.Sink].
func (b *Backend) SetService(s *model.Service) {
	if s == nil {
		return
	}
	if d := b.describe(s.Name); !d.service.Equal(s) {
		d.service = s
		b.changed[s.Name] = d
	}
}

// DeleteService implements [sink.Sink].
func (b *Backend) DeleteService(name model.ServiceName) {
	if d := b.services[name]; d != nil && d.service != nil {
		d.service = nil
		b.changed[name] = d
	}
}

// SetEndpoint implements [sink.Sink].
func (b *Backend) SetEndpoint(ep *model.Endpoint) {
	if ep == nil {
		return
	}
	if d := b.describe(ep.Port.Service); d.setEndpoint(ep) {
		b.changed[ep.Port.Service] = d
	}
}

// DeleteEndpoint implements [sink.Sink].
func (b *Backend) DeleteEndpoint(key model.EndpointKey) {
	if d := b.services[key.Port.Service]; d != nil && d.deleteEndpoint(key) {
		b.changed[key.Port.Service] = d
	}
}

func (b *Backend) describe(name model.ServiceName) *described {
	d := b.services[name]
	if d == nil {
		d = &described{}
		b.services[name] = d
	}
	return d
}

// ForceResync implements [sink.Resyncer].
func (b *Backend) ForceResync() {
	for _, f := range b.families {
		f.resync = true
	}
}

// ResyncFailed implements [sink.FailureResyncer].
func (b *Backend) ResyncFailed() {
	for _, f := range b.families {
		v4, v6 := sink.FailedFamilies(f.failed)
		f.resync = f.resync || v4 || v6
	}
}

// Sync implements [sink.Sink]. The error is a [*sink.FamilyError] for each family that is not in force.
func (b *Backend) Sync(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.started = true
	var errs []error
	for _, f := range b.families {
		if f.resync {
			f.known = false
			if f.features.Family == model.IPv4 && b.options.LocalhostNodePorts && b.options.NodePortAddresses.Loopback() {
				b.machine.allowLocalnet(ctx)
			}
		}
		f.failed = f.sync(ctx, b.node, b.changed)
		f.resync = false
		if f.failed != nil {
			errs = append(errs, &sink.FamilyError{Family: f.features.Family, Err: fmt.Errorf("iptables: %w", f.failed)})
		}
	}
	for name, d := range b.changed {
		if d.isEmpty() {
			delete(b.services, name)
		}
	}
	if len(b.changed) > 64 {
		b.changed = map[model.ServiceName]*described{} // clearing costs as much as the map ever held
	} else {
		clear(b.changed)
	}
	if err := ctx.Err(); err != nil && len(errs) > 0 {
		for _, f := range b.families {
			f.failed = nil // it has merely not been done
		}
		return err
	}
	return errors.Join(errs...)
}

// CleanUp removes the backend's chains and what leads to them. Flows that are under way keep their endpoints; for new ones
// services end. A later Sync puts everything in force again.
func (b *Backend) CleanUp(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.started = false
	var errs []error
	for _, f := range b.families {
		f.known = false
		if err := cleanUp(ctx, f.dataplane); err != nil {
			errs = append(errs, fmt.Errorf("iptables: cleaning up: %w", err))
			continue
		}
		for _, table := range []dp.Table{dp.NAT, dp.Filter} {
			f.metrics.inForce(f.features.Family, table, 0)
		}
	}
	return errors.Join(errs...)
}

// Close ends the repairs and releases what the backend holds. The rules stay in force. Call no other method after it; a
// second Close does nothing.
func (b *Backend) Close() error {
	b.stop()
	<-b.done
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.close()
}

// CleanUp removes the chains of a backend that is not running: of o only Families, Variant and Dataplanes matter. Without
// Variant and Dataplanes it does so in both variants, as far as their programs are there. That there are none of our chains is no
// error; what cannot be looked into is one, after the rest has been cleaned up.
func CleanUp(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	found, opened := o.Dataplanes, []dp.Interface(nil)
	var errs []error
	if found == nil {
		var err error
		opened, err = dp.OpenInUse(ctx, o.Families, o.Variant)
		found, errs = opened, append(errs, err)
	}
	for _, d := range found {
		errs = append(errs, cleanUp(ctx, d))
	}
	errs = append(errs, closeAll(opened))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("iptables: cleaning up: %w", err)
	}
	return nil
}
