package userspace

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/lifecycle"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// Backend is a [frontend.Backend], which documents its methods. It serves connections itself.
//
// DescribeService returns the listeners, endpoints, connections and flows of a service.
//
// CleanUp closes all listeners and undoes the changes made through Addresses.
type Backend struct {
	*running

	options Options
	// loopbackOnly: node ports are served on 127.0.0.1 and ::1, and nowhere else.
	loopbackOnly bool
	families     map[model.Family]*family
	hosts        *nodeaddr.Tracker // all addresses of the host
	nodePorts    *nodeaddr.Tracker

	ctx         context.Context // ends connections and flows
	stop        context.CancelFunc
	wg          sync.WaitGroup // goroutines of flows
	traffic     sync.WaitGroup // connections, and the goroutines that accept them
	connections *pool
	flows       *pool // UDP
	listeners   *listenerQuota
	own         ownSockets
	remembered  atomic.Int64  // clients with session affinity
	held        chan struct{} // holds one element for each connection that is to be dropped
	buffers     sync.Pool
	// These are logged once in a while: that connections cannot be accepted, that none can be made to endpoints, and
	// that some endpoints are this backend itself.
	acceptErrors, dialErrors, ownAddresses logLimiter

	mu        sync.Mutex // guards the rest, and the families' listeners
	inherited map[socketKey]socket
	closed    bool
}

type running = lifecycle.Running

// New returns a backend, which serves nothing before the first Sync. Its limits are lower where the process may not
// open many files: together connections, flows and listeners take three quarters of the file descriptors at most, so
// that the rest of the program keeps some. Until Close it follows the host's addresses in the background. It logs with
// the logger of ctx; the end of ctx ends neither Sync nor connections.
func New(ctx context.Context, o Options) (*Backend, error) {
	o.Metrics = nil // only a Loopback has them
	return newBackend(ctx, o, false)
}

func newBackend(ctx context.Context, o Options, loopbackOnly bool) (*Backend, error) {
	o.tuning = o.tuning.within(maxFiles())
	b := &Backend{options: o.withDefaults(), loopbackOnly: loopbackOnly}
	b.buffers.New = func() any { return new([maxDatagram]byte) }
	limits := &b.options.tuning
	b.connections, b.flows = newPool(limits.MaxConnections, minIdle), newPool(limits.MaxFlows, 0)
	b.listeners = newListenerQuota(limits.MaxListeners)
	b.held = make(chan struct{}, limits.MaxConnections/8)
	b.ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	s := &lifecycle.Spec[*family]{Name: "userspace", Common: o.Common, Open: b.open,
		Apply: (*family).sync, Check: (*family).check, Describe: (*family).describeService, Remove: (*family).cleanUp}
	var err error
	if b.running, err = s.Start(b.ctx); err != nil {
		b.stop()
		return nil, err
	}
	return b, nil
}

// open checks what the backend needs, and takes over the sockets of an earlier process.
func (b *Backend) open(ctx context.Context, s *lifecycle.Spec[*family]) (err error) {
	o := &b.options
	b.families = s.Families
	_ = s.Serve(ctx, func(f model.Family) (*family, error) { return newFamily(b, f, newMetrics(&s.Metrics, f)), nil })
	if b.hosts, err = s.Follow(nodeaddr.Options{Host: o.Host}); err != nil {
		return err
	}
	if b.nodePorts, err = s.Follow(nodeaddr.Options{Host: o.Host, Choice: o.NodePortAddresses}); err != nil {
		return err
	}
	s.NodePorts = lifecycle.NodePorts{Tracker: b.nodePorts, Serves: b.servesNodePorts}
	b.inherited, err = inherit(o.Sockets)
	s.Own(func() error { b.closeInherited(model.Families()...); return nil })
	return err
}

// check moves node ports to other addresses when the host's addresses change.
func (f *family) check(ctx context.Context, c *frontend.Changes) (frontend.CheckResult, error) {
	return frontend.CheckResult{}, f.sync(ctx, c)
}

// sync records changes, and opens and closes listeners accordingly.
func (f *family) sync(ctx context.Context, c *frontend.Changes) error {
	b := f.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errors.New("the backend is closed")
	}
	f.absorb(c)
	nodePorts := b.nodePorts.Addresses().Of(c.Family())
	nodePorts = slices.DeleteFunc(nodePorts, func(a netip.Addr) bool { return !b.servesNodePorts(a) })
	defer func() { f.metrics.listeners.Set(float64(len(f.listeners))) }()
	err := f.apply(ctx, nodePorts)
	f.refuse(c)
	c.Accept()
	if err == nil {
		b.closeInherited(c.Family())
	}
	return err
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

// cleanUp closes all listeners and undoes the changes made through Addresses.
func (f *family) cleanUp(ctx context.Context) error {
	b := f.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	f.closeAll()
	b.families[f.family] = newFamily(b, f.family, f.metrics)
	return b.options.Addresses.Update(ctx, f.family, true, nil, nil)
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
	b.wg.Wait()
	return b.running.Close()
}
