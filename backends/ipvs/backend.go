package ipvs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	nft "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Backend is a [sink.Sink] whose Sync applies services with IPVS. It is also a [sink.NodeSetter], a [sink.Resyncer] and
// a [sink.FailureResyncer]. Its methods are called from one goroutine at a time, as those of every sink, except Close
// and CleanUp, which may be called from any.
type Backend struct {
	// Table has the methods of the sink, and keeps what Sync has to apply.
	*frontend.Table

	options   Options
	families  map[model.Family]*family
	order     []model.Family
	nodePorts *nodeaddr.Tracker
	wake      chan struct{}

	stop   context.CancelFunc
	wg     sync.WaitGroup
	owned  []func() error // to close
	closed sync.Once
	err    error
}

var (
	_ sink.Sink            = (*Backend)(nil)
	_ sink.NodeSetter      = (*Backend)(nil)
	_ sink.Resyncer        = (*Backend)(nil)
	_ sink.FailureResyncer = (*Backend)(nil)
)

// New checks that the kernel supports what the backend needs, and returns the backend. For the check it makes a virtual
// server with a mark that no packet has, and deletes it again; it changes nothing else until the first Sync. In the
// background, until ctx ends or Close is called, it removes drained endpoints and repairs changes by others in its
// tables; it logs to ctx's logger. ctx does not bound calls of Sync.
func New(ctx context.Context, o Options) (*Backend, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("ipvs: %w", err)
	}
	b := &Backend{options: o.withDefaults(), families: map[model.Family]*family{}, wake: make(chan struct{}, 1)}
	if err := b.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("ipvs: %w", err), b.release())
	}
	table, err := frontend.New(frontend.Options{Families: b.order, Apply: b.apply, OnProblem: o.OnProblem})
	if err != nil {
		return nil, errors.Join(err, b.release())
	}
	b.Table = table
	ctx, b.stop = context.WithCancel(ctx)
	b.wg.Go(func() { _ = b.nodePorts.Run(ctx) }) // nil, when ctx ends
	b.wg.Go(func() { b.forward(ctx) })
	return b, nil
}

// open opens what the backend needs, and checks it.
func (b *Backend) open(ctx context.Context) error {
	o := &b.options
	if o.Dataplane == nil {
		k, err := dp.NewKernel(ctx, "")
		if err != nil {
			return err
		}
		o.Dataplane = k
		b.owned = append(b.owned, k.Close)
	}
	if o.NFTables == nil {
		n, err := nft.NewNetlink()
		if err != nil {
			return err
		}
		o.NFTables = n
		b.owned = append(b.owned, n.Close)
	}
	if o.Host == nil {
		host, closeHost, err := systemHost()
		if err != nil {
			return err
		}
		o.Host = host
		b.owned = append(b.owned, closeHost)
	}
	if err := checkScheduler(ctx, o.Dataplane, o.Scheduler); err != nil {
		return err
	}
	sticky := byClient
	if err := checkScheduler(ctx, o.Dataplane, sticky); err != nil {
		klog.FromContext(ctx).Info(
			"No session affinity where a service's traffic policy is Local, for pods of this node "+
				"and the node itself", "reason", err)
		sticky = o.Scheduler
	}
	var err error
	b.order, err = frontend.ChooseFamilies(ctx, o.Families, func(f model.Family) (absent bool, err error) {
		return true, probeFilter(ctx, o, f)
	})
	if err != nil {
		return err
	}
	metrics := newMetrics(b.order)
	b.makeFamilies(metrics)
	for _, f := range b.families {
		f.sticky = sticky
	}
	unregister, err := metrics.Register(o.Metrics)
	if err != nil {
		return err
	}
	b.owned = append(b.owned, func() error { unregister(); return nil })
	b.nodePorts, err = nodeaddr.NewTracker(nodeaddr.Options{Choice: o.NodePortAddresses, Host: o.Host,
		ExcludeInterfaces: ServiceLinks(), Changed: func(nodeaddr.Addresses) { b.notify() }})
	if err != nil {
		return fmt.Errorf("addresses of this host: %w", err)
	}
	return nil
}

// makeFamilies makes the families, without any known state.
func (b *Backend) makeFamilies(m *metrics) {
	o := &b.options
	for _, f := range b.order {
		filter := newFilter(o.NFTables, nft.TableKey{Family: f, Name: tableName})
		b.families[f] = newFamily(f, o, o.Dataplane, filter, m.of(f))
	}
}

// ServiceLinks are the interfaces whose addresses are not the node's own: upstream kube-proxy's is among them.
func ServiceLinks() []string { return []string{dp.DefaultLink, upstreamLink} }

// checkScheduler finds out whether the kernel has a scheduler. The kernel loads its module if it can.
func checkScheduler(ctx context.Context, d dp.Interface, scheduler string) error {
	// No packet should have this mark, and the virtual server exists for a moment only.
	probe := dp.Server{ServerKey: dp.ServerKey{Family: model.IPv4, Mark: 0x7fffffff}, Scheduler: scheduler,
		Flags: dp.Owned}
	err := d.AddServer(ctx, probe)
	if errors.Is(err, syscall.EEXIST) { // an earlier process died here
		if err = deleteServer(ctx, d, probe.ServerKey); err == nil {
			err = d.AddServer(ctx, probe)
		}
	}
	if errors.Is(err, syscall.ENOENT) {
		return &dp.MissingModuleError{What: "IPVS scheduler " + scheduler, Module: "ip_vs_" + scheduler}
	}
	if err != nil {
		return fmt.Errorf("check the scheduler %s: %w", scheduler, err)
	}
	if err := deleteServer(ctx, d, probe.ServerKey); err != nil {
		return fmt.Errorf("check the scheduler %s: %w", scheduler, err)
	}
	return nil
}

// probeFilter has the kernel check a table without making it.
func probeFilter(ctx context.Context, o *Options, f model.Family) error {
	probe := newFilter(o.NFTables, nft.TableKey{Family: f, Name: tableName + "-probe"})
	probe.known = true
	for _, c := range newConfig(f, o, &model.Node{}, nil).baseChains(probe.sets) {
		probe.addChain(c)
	}
	if err := o.NFTables.Check(ctx, probe.transaction(false)); err != nil {
		return fmt.Errorf("nftables of this kernel cannot do what is needed for %v: %w", f, err)
	}
	return nil
}

// notify wakes the goroutine that repairs.
func (b *Backend) notify() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// forward repairs and drains until ctx ends.
func (b *Backend) forward(ctx context.Context) {
	b.wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-b.options.NFTables.Drift():
				b.notify()
			}
		}
	})
	b.Repair(ctx, frontend.RepairOptions{Wake: b.wake, Every: b.options.drainInterval, Look: b.look})
}

// apply applies the changes of a family.
func (b *Backend) apply(ctx context.Context, c *frontend.Changes) error {
	f := b.families[c.Family()]
	if c.Full() || !f.known {
		if err := b.prepare(ctx); err != nil {
			return err
		}
	}
	return f.apply(ctx, c, b.config(c), time.Now())
}

// config returns the configuration of a family.
func (b *Backend) config(c *frontend.Changes) *config {
	b.nodePorts.SetNode(c.Node())
	return newConfig(c.Family(), &b.options, c.Node(), b.nodePorts.Addresses().Of(c.Family()))
}

// look drains, and repairs what others have changed in the packet filter. Virtual servers are compared at each resync.
func (b *Backend) look(ctx context.Context, c *frontend.Changes) (frontend.Look, error) {
	f := b.families[c.Family()]
	if !f.known {
		return frontend.Look{}, nil // the next Sync does everything
	}
	now := time.Now()
	// Somebody may have woken it for another reason. The ticker need not be exact.
	var undrained error // repairs do not wait for what cannot be deleted
	if now.Sub(f.drained) > b.options.drainInterval/2 {
		f.drained = now
		undrained = f.drain(ctx, now)
	}
	if next := b.config(c); !next.equal(f.config) {
		err := f.apply(ctx, c, next, now)
		if v4, v6 := sink.FailedFamilies(err); !v4 && !v6 {
			err = nil // the next Sync reports the ports that are not served
		}
		return frontend.Look{Repaired: true}, errors.Join(undrained, err)
	}
	if !f.filter.dataplane.Drifted(f.filter.key) {
		return frontend.Look{}, undrained
	}
	f.filter.known = false
	if err := f.commitFilter(ctx, true); err != nil {
		return frontend.Look{}, errors.Join(undrained, err)
	}
	f.metrics.repairs.Inc()
	klog.FromContext(ctx).Info("Repaired a table that another program had changed", "table", f.filter.key)
	return frontend.Look{Repaired: true}, undrained
}

// CleanUp deletes the backend's virtual servers, its dummy interface and its tables. Connections end. A later Sync
// applies everything again.
func (b *Backend) CleanUp(ctx context.Context) error {
	return b.Table.CleanUp(ctx, b.cleanUp)
}

func (b *Backend) cleanUp(ctx context.Context) error {
	var errs []error
	for _, f := range b.order {
		if err := b.families[f].cleanUp(ctx); err != nil {
			errs = append(errs, fmt.Errorf("ipvs: cleaning up %v: %w", f, err))
		}
	}
	both := len(b.order) == 2 || b.options.Families == nil // who use the interface
	if b.options.Dataplane != nil && both {
		if err := b.options.Dataplane.DeleteLink(ctx); err != nil {
			errs = append(errs, fmt.Errorf("ipvs: cleaning up: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Close ends the background work and releases the backend's resources. Everything applied stays. Call no other method
// after it; a second Close does nothing.
func (b *Backend) Close() error {
	b.closed.Do(func() {
		b.stop()
		b.wg.Wait()
		b.err = b.release()
	})
	return b.err
}

func (b *Backend) release() error {
	var errs []error
	for _, c := range b.owned {
		errs = append(errs, c())
	}
	b.owned = nil
	return errors.Join(errs...)
}

// CleanUp deletes what a backend that is not running has left: of o only Families, Dataplane and NFTables
// matter. It is not an error if nothing is left, or if the kernel has not loaded IPVS: CleanUp does not load it.
func CleanUp(ctx context.Context, o Options) (err error) {
	if err := o.validate(); err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	b := &Backend{options: o.withDefaults(), families: map[model.Family]*family{}}
	defer func() { err = errors.Join(err, b.release()) }()
	if b.options.Dataplane == nil && dp.IsLoaded() {
		k, err := dp.NewKernel(ctx, "")
		if err != nil {
			return fmt.Errorf("ipvs: %w", err)
		}
		b.options.Dataplane = k
		b.owned = append(b.owned, k.Close)
	}
	if b.options.NFTables == nil {
		n, err := nft.NewNetlink()
		if err != nil {
			return fmt.Errorf("ipvs: %w", err)
		}
		b.options.NFTables = n
		b.owned = append(b.owned, n.Close)
	}
	if b.order = o.Families; b.order == nil {
		b.order = model.Families()
	}
	b.makeFamilies(newMetrics(b.order))
	return b.cleanUp(ctx)
}
