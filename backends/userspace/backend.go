package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Backend is a [sink.Sink] that serves connections itself. As with every sink, the methods of that interface are called
// from one goroutine at a time. All others may be called from any goroutine.
type Backend struct {
	// Table has the methods of the sink, and keeps what Sync has to apply.
	*frontend.Table

	options Options
	// loopbackOnly: node ports are served on 127.0.0.1 and ::1, and nowhere else.
	loopbackOnly bool
	metrics      *metrics
	families     map[model.Family]*family
	hosts        *nodeaddr.Tracker // all addresses of the host
	nodePorts    *nodeaddr.Tracker
	wake         chan struct{}

	ctx         context.Context // ends connections and flows
	stop        context.CancelFunc
	wg          sync.WaitGroup // goroutines that run until Close
	traffic     sync.WaitGroup // connections, and the goroutines that accept them
	connections *places
	listeners   *places
	held        chan struct{} // holds one element for each connection that is to be dropped
	buffers     sync.Pool
	// What is logged now and then: that connections cannot be accepted, that they wait, that none can be made to
	// endpoints, and that flows are replaced.
	unaccepted, waiting, undialled, replaced seldom

	flowsMu    sync.Mutex
	flows      map[*flow]bool // UDP
	flowShares shares

	mu        sync.Mutex // guards the rest, and the families' listeners
	inherited map[socketKey]socket
	closed    bool
}

var (
	_ sink.Sink            = (*Backend)(nil)
	_ sink.NodeSetter      = (*Backend)(nil)
	_ sink.Resyncer        = (*Backend)(nil)
	_ sink.FailureResyncer = (*Backend)(nil)
	_ sink.Describer       = (*Backend)(nil)
)

// New returns a backend, which serves nothing before the first Sync. Until Close it follows the host's addresses in the
// background. It logs with the logger of ctx; the end of ctx ends neither Sync nor connections.
func New(ctx context.Context, o Options) (*Backend, error) { return newBackend(ctx, o, false) }

func newBackend(ctx context.Context, o Options, loopbackOnly bool) (*Backend, error) {
	if err := o.NodePortAddresses.Validate(); err != nil {
		return nil, fmt.Errorf("userspace: %w", err)
	}
	b := &Backend{options: o.withDefaults(), loopbackOnly: loopbackOnly, families: map[model.Family]*family{},
		wake: make(chan struct{}, 1), flows: map[*flow]bool{}, flowShares: newShares()}
	if o.KeepSource {
		if err := b.options.Open(canKeepSource); err != nil {
			return nil, fmt.Errorf("userspace: keepSource: %w", err)
		}
	}
	b.buffers.New = func() any { return new([maxDatagram]byte) }
	b.connections, b.listeners = newPlaces(b.options.tuning.MaxConnections), newPlaces(b.options.tuning.MaxListeners)
	b.held = make(chan struct{}, b.options.tuning.MaxConnections/8)
	b.metrics = newMetrics(b.options.Families)
	for _, f := range b.options.Families {
		b.families[f] = newFamily(b, f)
	}
	var err error
	b.Table, err = frontend.New(frontend.Options{Families: b.options.Families, Apply: b.apply})
	if err != nil {
		return nil, err
	}
	changed := func(nodeaddr.Addresses) {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
	var err1, err2 error
	b.hosts, err1 = nodeaddr.NewTracker(nodeaddr.Options{Host: b.options.Host, Changed: changed})
	b.nodePorts, err2 = nodeaddr.NewTracker(nodeaddr.Options{Host: b.options.Host, Choice: o.NodePortAddresses,
		Changed: changed})
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("userspace: addresses of this host: %w", err)
	}
	if b.inherited, err = inherit(o.Sockets); err != nil {
		return nil, fmt.Errorf("userspace: %w", err)
	}
	b.ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.wg.Go(func() { _ = b.hosts.Run(b.ctx) })
	b.wg.Go(func() { _ = b.nodePorts.Run(b.ctx) })
	b.wg.Go(b.follow)
	return b, nil
}

// SetNode implements [sink.NodeSetter].
func (b *Backend) SetNode(n *model.Node) {
	b.Table.SetNode(n)
	b.nodePorts.SetNode(n)
}

// follow moves node ports to other addresses when the host's addresses change.
func (b *Backend) follow() {
	look := func(ctx context.Context, c *frontend.Changes) (frontend.Look, error) {
		err := b.apply(ctx, c)
		if v4, v6 := sink.FailedFamilies(err); !v4 && !v6 {
			err = nil // the next Sync reports the ports that are not served
		}
		return frontend.Look{}, err
	}
	b.Repair(b.ctx, frontend.RepairOptions{Wake: b.wake, Look: look})
}

// apply takes over the changes of a family, and opens and closes listeners accordingly.
func (b *Backend) apply(ctx context.Context, c *frontend.Changes) error {
	f := b.families[c.Family()]
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errors.New("the backend is closed")
	}
	f.absorb(c)
	c.Accept()
	var nodePorts []netip.Addr
	for _, a := range b.nodePorts.Addresses().Of(c.Family()) {
		if b.servesNodePorts(a) {
			nodePorts = append(nodePorts, a)
		}
	}
	defer func() { b.metrics.listening(c.Family(), len(f.listeners)) }()
	if err := f.apply(ctx, nodePorts); err != nil {
		return err
	}
	b.closeInherited(c.Family())
	return f.errors()
}

// servesNodePorts reports whether an address of the host that is chosen for node ports serves them.
func (b *Backend) servesNodePorts(a netip.Addr) bool {
	switch {
	case b.loopbackOnly:
		return a == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || a == netip.IPv6Loopback()
	case a.IsLoopback():
		return b.options.LocalhostNodePorts && a.Is4()
	}
	return true
}

// source classifies a client of a frontend.
func (f *family) source(addr netip.Addr, fr frontend.Frontend) source {
	contains := func(p netip.Prefix) bool { return p.Contains(addr) }
	return source{
		addr:  addr,
		isPod: slices.ContainsFunc(*f.localPods.Load(), contains),
		// A process of the node that connects to a local address uses the same address as its source.
		isNode: addr.IsLoopback() || addr == fr.Addr || slices.Contains(f.backend.hosts.Addresses().IPs, addr),
	}
}

// CleanUp closes all listeners and undoes the changes made through Addresses. A later Sync serves again.
func (b *Backend) CleanUp(ctx context.Context) error {
	return b.Table.CleanUp(ctx, func(ctx context.Context) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		var errs []error
		for _, f := range b.options.Families {
			b.families[f].closeAll()
			b.families[f] = newFamily(b, f)
			errs = append(errs, b.options.Addresses.Update(ctx, f, true, nil, nil))
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("userspace: cleaning up: %w", err)
		}
		return nil
	})
}

// Drain stops accepting connections and datagrams, and returns when all connections have ended or ctx is done. Call
// Close afterwards. Sockets that another process shares stay open there.
func (b *Backend) Drain(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	for _, f := range b.families {
		f.closeAll()
	}
	b.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		b.traffic.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends all connections and flows, and every goroutine of the backend. It leaves Addresses as they are.
func (b *Backend) Close() error {
	b.stop()
	_ = b.Drain(context.Background())
	b.mu.Lock()
	for _, f := range b.options.Families {
		b.closeInherited(f)
	}
	b.mu.Unlock()
	b.wg.Wait()
	return nil
}
