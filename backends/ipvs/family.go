package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/backends/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// family is the backend in one IP family: what is to be, and what the kernel was last known to have.
type family struct {
	key       model.Family
	options   *Options
	dataplane dp.Interface
	filter    *filter
	metrics   *familyMetrics
	config    *config
	sticky    string // scheduler of virtual servers by mark with session affinity

	ports        map[model.PortName]*port
	owner        map[*server]*port
	elementOwner map[element]*port
	servers      map[dp.ServerKey]*server
	dirty        map[*server]bool
	draining     map[*server]int // endpoints that drain
	allDraining  int             // the sum of these
	markOwners   map[uint32]model.PortName

	// hostAddrs are the host's own addresses: they are not put on the dummy interface.
	hostAddrs map[netip.Addr]bool
	// foreign are virtual servers of others, and taken the service ports that are not served because of one of them.
	foreign map[dp.ServerKey]dp.Server
	taken   map[dp.ServerKey]model.PortName

	users      map[netip.Addr]int // virtual servers that need an address on the dummy interface
	counted    map[*server]bool
	bound      map[netip.Addr]bool // what is there
	dirtyAddrs map[netip.Addr]bool
	drained    time.Time // the last check for connections that have ended
	known      bool      // the kernel has been read, and nothing has failed since
}

// newFamily returns a family. d is nil if the kernel has no IPVS.
func newFamily(f model.Family, o *Options, d dp.Interface, filter *filter, m *familyMetrics) *family {
	if d != nil {
		d = &countedRequests{d, m}
	}
	return &family{key: f, options: o, dataplane: d, filter: filter, metrics: m,
		ports: map[model.PortName]*port{}, owner: map[*server]*port{}, elementOwner: map[element]*port{},
		servers: map[dp.ServerKey]*server{}, dirty: map[*server]bool{}, draining: map[*server]int{},
		markOwners: map[uint32]model.PortName{}, hostAddrs: map[netip.Addr]bool{},
		foreign: map[dp.ServerKey]dp.Server{}, taken: map[dp.ServerKey]model.PortName{},
		users: map[netip.Addr]int{}, counted: map[*server]bool{}, bound: map[netip.Addr]bool{},
		dirtyAddrs: map[netip.Addr]bool{}, drained: time.Now()}
}

// serverFor returns the virtual server with a key.
func (f *family) serverFor(key dp.ServerKey, p model.Protocol) *server {
	s := f.servers[key]
	if s == nil {
		s = &server{key: key, destinations: map[netip.AddrPort]*destination{}, changed: map[netip.AddrPort]bool{},
			draining: map[netip.AddrPort]time.Time{}}
		f.servers[key] = s
	}
	s.protocol = p
	return s
}

// apply follows changes.
func (f *family) apply(ctx context.Context, c *frontend.Changes, next *config, now time.Time) error {
	full := c.Full() || !f.known
	rebuild := full || !next.equal(f.config)
	if rebuild {
		if err := f.readHost(); err != nil {
			return err
		}
	}
	if full {
		f.metrics.resyncs.Inc()
		f.known = false
		if err := f.read(ctx); err != nil {
			return err
		}
	}
	if rebuild {
		f.config = next
		f.rebuild(c)
		if err := f.adoptForeign(ctx); err != nil {
			return err
		}
	} else {
		for p := range c.Ports() {
			f.change(p)
		}
		diff := c.Hairpins()
		for _, a := range diff.Removed {
			f.filter.unset(hairpin(a))
		}
		for _, a := range diff.Added {
			f.filter.set(hairpin(a), "")
		}
	}
	c.Accept() // from here on, what has failed is found by reading
	f.known = false
	if err := f.commit(ctx, now); err != nil {
		return err
	}
	f.known = true
	return f.conflicts()
}

func hairpin(a netip.Addr) element { return element{hairpinSet, addrKey(a) + addrKey(a)} }

// readHost reads which addresses are the host's own.
func (f *family) readHost() error {
	list, err := f.options.Host.Addresses()
	if err != nil {
		return fmt.Errorf("addresses of this host: %w", err)
	}
	f.hostAddrs = map[netip.Addr]bool{}
	for _, a := range list {
		if !slices.Contains(ServiceLinks(), a.Interface) {
			f.hostAddrs[a.Addr.Unmap().WithZone("")] = true
		}
	}
	return nil
}

// read reads what the kernel has.
func (f *family) read(ctx context.Context) error {
	list, err := f.dataplane.Servers(ctx)
	if err != nil {
		return fmt.Errorf("list virtual servers: %w", err)
	}
	clear(f.foreign)
	there := map[dp.ServerKey]bool{}
	for _, actual := range list {
		if actual.Family != f.key {
			continue
		}
		if actual.Flags&dp.Owned == 0 {
			f.foreign[actual.ServerKey] = actual
			continue
		}
		if err := f.adopt(ctx, actual); err != nil {
			return err
		}
		there[actual.ServerKey] = true
	}
	for key, s := range f.servers {
		if !there[key] {
			s.isGone()
		}
	}
	addrs, err := f.dataplane.Addresses(ctx, f.key)
	if err != nil {
		return err
	}
	clear(f.bound)
	for _, a := range addrs {
		f.bound[a] = true
		f.dirtyAddrs[a] = true
	}
	for a := range f.users {
		f.dirtyAddrs[a] = true
	}
	f.filter.known = false
	return nil
}

// adopt takes over a virtual server that the kernel has.
func (f *family) adopt(ctx context.Context, actual dp.Server) error {
	destinations, err := f.dataplane.Destinations(ctx, actual.ServerKey)
	if err != nil {
		return fmt.Errorf("endpoints of virtual server %v: %w", actual.ServerKey, err)
	}
	s := f.servers[actual.ServerKey]
	if s == nil {
		s = f.serverFor(actual.ServerKey, actual.Protocol)
		if s.protocol == 0 {
			s.protocol = model.TCP // of one by mark it is not known
		}
	}
	s.adopt(actual, destinations)
	f.dirty[s] = true
	return nil
}

// adoptForeign takes over those virtual servers of others that have the address and port of a service: those of
// upstream kube-proxy, for example.
func (f *family) adoptForeign(ctx context.Context) error {
	for key, actual := range f.foreign {
		if s := f.servers[key]; s != nil && s.wanted && !s.exists {
			klog.FromContext(ctx).Info("Taking over a virtual server of somebody else", "server", key)
			delete(f.foreign, key)
			if err := f.adopt(ctx, actual); err != nil {
				return err
			}
		}
	}
	return nil
}

// rebuild describes everything anew.
func (f *family) rebuild(c *frontend.Changes) {
	for _, s := range f.servers {
		s.wanted = false
		f.dirty[s] = true
	}
	f.filter.reset()
	clear(f.ports)
	clear(f.owner)
	clear(f.elementOwner)
	clear(f.markOwners)
	clear(f.taken)
	for _, chain := range f.config.baseChains() {
		f.filter.addChain(chain)
	}
	for p := range c.All().Ports() {
		f.describe(p)
	}
	for _, a := range c.All().Hairpins().Added {
		f.filter.set(hairpin(a), "")
	}
	for a, n := range f.users {
		if n > 0 {
			f.guard(a)
		}
	}
}

// guard has the packet filter protect an address of the dummy interface.
func (f *family) guard(a netip.Addr) {
	f.filter.set(element{boundSet, addrKey(a)}, "")
	f.filter.set(element{boundSources, addrKey(a) + addrKey(a)}, "")
}

// commit applies everything. First comes whatever serves new connections, then the packet filter that sends them there;
// then what is no longer needed is deleted. An address is on the dummy interface only while the filter guards it.
func (f *family) commit(ctx context.Context, now time.Time) error {
	defer f.report()
	var errs failures
	var grown []*server
	for _, s := range f.dirtyServers() {
		f.count(s)
		if err := s.grow(ctx, f.dataplane, now); err != nil {
			errs.add(err)
			continue
		}
		grown = append(grown, s)
	}
	for a := range f.dirtyAddrs {
		if f.users[a] > 0 {
			f.guard(a)
		}
	}
	if err := f.commitFilter(ctx, false); err != nil {
		return errors.Join(err, errs.err())
	}
	errs.add(f.addAddresses(ctx))
	for _, s := range grown {
		errs.add(f.shrink(ctx, s, now))
	}
	errs.add(f.removeAddresses(ctx))
	errs.add(f.commitFilter(ctx, true))
	return errs.err()
}

// commitFilter applies the packet filter.
func (f *family) commitFilter(ctx context.Context, final bool) error {
	err := f.filter.commit(ctx, final)
	if err != nil {
		f.metrics.filterFailures.Inc()
	}
	return err
}

// report sets the metrics of virtual servers and of endpoints that drain.
func (f *family) report() {
	f.metrics.servers.Set(float64(len(f.servers)))
	f.metrics.draining.Set(float64(f.allDraining))
}

func (f *family) dirtyServers() []*server {
	return slices.SortedFunc(maps.Keys(f.dirty), func(a, b *server) int { return a.key.Compare(b.key) })
}

// shrink deletes the real servers that a virtual server no longer needs, or all of it.
func (f *family) shrink(ctx context.Context, s *server, now time.Time) error {
	if err := s.shrink(ctx, f.dataplane, now); err != nil {
		return err
	}
	f.settle(s)
	delete(f.dirty, s)
	return nil
}

// settle notes what has become of a virtual server.
func (f *family) settle(s *server) {
	f.count(s)
	f.allDraining -= f.draining[s]
	if s.exists && len(s.draining) > 0 {
		f.draining[s] = len(s.draining)
		f.allDraining += len(s.draining)
	} else {
		delete(f.draining, s)
	}
	if !s.exists && !s.wanted {
		delete(f.servers, s.key)
	}
}

// count counts the virtual servers that need an address on the dummy interface.
func (f *family) count(s *server) {
	needs := s.key.Mark == 0 && !f.hostAddrs[s.key.Addr] && (s.wanted || s.exists)
	if needs == f.counted[s] {
		return
	}
	a := s.key.Addr
	f.dirtyAddrs[a] = true
	if needs {
		f.counted[s] = true
		f.users[a]++
		return
	}
	delete(f.counted, s)
	if f.users[a]--; f.users[a] == 0 {
		delete(f.users, a)
	}
}

func (f *family) addAddresses(ctx context.Context) error {
	var errs failures
	for _, a := range slices.SortedFunc(maps.Keys(f.dirtyAddrs), netip.Addr.Compare) {
		if f.users[a] == 0 {
			continue
		}
		if !f.bound[a] {
			if err := f.dataplane.AddAddress(ctx, a); err != nil {
				errs.add(err)
				continue
			}
			f.bound[a] = true
		}
		delete(f.dirtyAddrs, a)
	}
	return errs.err()
}

// removeAddresses deletes the addresses of the dummy interface that nobody needs, and then their guards in the filter.
func (f *family) removeAddresses(ctx context.Context) error {
	var errs failures
	for _, a := range slices.SortedFunc(maps.Keys(f.dirtyAddrs), netip.Addr.Compare) {
		if f.users[a] > 0 {
			continue
		}
		if f.bound[a] {
			if err := f.dataplane.DeleteAddress(ctx, a); err != nil {
				errs.add(err)
				continue
			}
			delete(f.bound, a)
		}
		f.filter.unset(element{boundSet, addrKey(a)})
		f.filter.unset(element{boundSources, addrKey(a) + addrKey(a)})
		delete(f.dirtyAddrs, a)
	}
	return errs.err()
}

// conflicts returns an error for each service port that is not served because somebody else has a virtual server there.
func (f *family) conflicts() error {
	var errs []error
	for key, name := range f.taken {
		err := fmt.Errorf("%v is a virtual server of somebody else", key)
		errs = append(errs, &sink.PortError{Port: name, Family: f.key, Err: err})
	}
	slices.SortFunc(errs, func(a, b error) int { return compareText(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// drain deletes what drained, once its connections have ended.
func (f *family) drain(ctx context.Context, now time.Time) error {
	defer f.report()
	var errs failures
	for _, s := range slices.SortedFunc(maps.Keys(f.draining), func(a, b *server) int { return a.key.Compare(b.key) }) {
		errs.add(s.drain(ctx, f.dataplane, now, f.options.DrainTimeout))
		f.settle(s)
	}
	errs.add(f.removeAddresses(ctx))
	errs.add(f.commitFilter(ctx, true))
	return errs.err()
}

// cleanUp deletes everything of the family. Addresses go before what guards them.
func (f *family) cleanUp(ctx context.Context) error {
	f.known = false
	if f.dataplane == nil { // the kernel has no IPVS
		return f.filter.cleanUp(ctx)
	}
	list, err := f.dataplane.Servers(ctx)
	if err != nil {
		return fmt.Errorf("list virtual servers: %w", err)
	}
	var errs failures
	addrs, err := f.dataplane.Addresses(ctx, f.key)
	errs.add(err)
	for _, a := range addrs {
		errs.add(f.dataplane.DeleteAddress(ctx, a))
	}
	for _, s := range list {
		if s.Family != f.key || s.Flags&dp.Owned == 0 {
			continue
		}
		if err := f.dataplane.DeleteServer(ctx, s.ServerKey); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs.add(fmt.Errorf("delete virtual server %v: %w", s.ServerKey, err))
		}
	}
	errs.add(f.filter.cleanUp(ctx))
	if err := errs.err(); err != nil {
		return err
	}
	f.metrics.servers.Set(0)
	f.metrics.draining.Set(0)
	return nil
}

// failures collects errors, but no more than anyone would read.
type failures struct {
	list []error
	more int
}

const maxFailures = 10

func (f *failures) add(err error) {
	switch {
	case err == nil:
	case len(f.list) < maxFailures:
		f.list = append(f.list, err)
	default:
		f.more++
	}
}

func (f *failures) err() error {
	if f.more > 0 {
		return errors.Join(append(slices.Clone(f.list), fmt.Errorf("and %d more errors", f.more))...)
	}
	return errors.Join(f.list...)
}
