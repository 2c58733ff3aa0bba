package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// family is the backend in one IP family: the wanted state, and what the kernel was last known to have.
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
	// foreign are virtual servers of others. wantForeign are those whose address and port a service has claimed since
	// they were read; taken has the service ports that are not served because of one of them.
	foreign     map[dp.ServerKey]dp.Server
	wantForeign []dp.ServerKey
	taken       map[dp.ServerKey]model.PortName
	// freed are virtual servers at addresses that serve node ports, which have lost their owner in the present wave.
	freed []dp.ServerKey

	users      map[netip.Addr]map[*server]bool // virtual servers that need an address on the dummy interface
	bound      map[netip.Addr]bool             // what is there
	dirtyAddrs map[netip.Addr]bool

	// refusing are the virtual servers with something that the kernel has refused, and refusedAddrs the refused
	// addresses.
	refusing     map[*server]bool
	refusedAddrs map[netip.Addr]error

	drained time.Time // the last check for connections that have ended
	known   bool      // the kernel has been read, and nothing has failed since
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
		users: map[netip.Addr]map[*server]bool{}, bound: map[netip.Addr]bool{}, dirtyAddrs: map[netip.Addr]bool{},
		refusing: map[*server]bool{}, refusedAddrs: map[netip.Addr]error{}, drained: time.Now()}
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

// apply applies the changes of the family.
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
	} else {
		for p := range c.Ports() {
			f.change(p)
		}
		f.returnNodePorts(c)
		diff := c.Hairpins()
		for _, a := range diff.Removed {
			f.filter.unset(hairpin(a))
		}
		for _, a := range diff.Added {
			f.filter.set(hairpin(a), "")
		}
	}
	if c.Retry() {
		f.retryRefused()
		f.retryTaken(ctx, c)
	}
	c.Accept() // from here on, what has failed is found by reading
	f.known = false
	if err := f.adoptForeign(ctx); err != nil {
		return err
	}
	if err := f.commit(ctx, now); err != nil {
		return err
	}
	f.known = true
	return f.refusals()
}

func hairpin(a netip.Addr) element { return element{hairpins, rules.AddrKey(a, a)} }

// rebuild describes everything again.
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
	for _, chain := range f.config.baseChains(f.filter.sets) {
		f.filter.addChain(chain)
	}
	for p := range c.All().Ports() {
		f.describe(p)
	}
	for _, a := range c.All().Hairpins().Added {
		f.filter.set(hairpin(a), "")
	}
	for a := range f.users {
		f.guard(a)
	}
	for a := range f.bound { // also those that nobody needs: removeAddresses removes them, and then their guards
		f.guard(a)
	}
	f.freed = nil // all node ports have been served again
}

// commit applies everything. First comes what serves new connections, then the packet filter that sends them there;
// then obsolete objects are deleted. An address is on the dummy interface only while the filter guards it.
func (f *family) commit(ctx context.Context, now time.Time) error {
	defer f.report()
	var errs failures.List
	var grown []*server
	for _, s := range f.dirtyServers() {
		f.count(s)
		if err := s.grow(ctx, f.dataplane, now); err != nil {
			errs.Add(err)
			continue
		}
		grown = append(grown, s)
	}
	for a := range f.dirtyAddrs {
		if len(f.users[a]) > 0 {
			f.guard(a)
		}
	}
	if err := f.commitFilter(ctx, false); err != nil {
		return errors.Join(err, errs.Err())
	}
	errs.Add(f.addAddresses(ctx))
	for _, s := range grown {
		errs.Add(f.shrink(ctx, s, now))
	}
	errs.Add(f.removeAddresses(ctx))
	errs.Add(f.commitFilter(ctx, true))
	if len(f.dirty) == 0 { // iterating over a map that was once big takes long
		f.dirty = map[*server]bool{}
	}
	if len(f.dirtyAddrs) == 0 {
		f.dirtyAddrs = map[netip.Addr]bool{}
	}
	return errs.Err()
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

// settle updates the family's records after a virtual server has changed.
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
	if s.wanted && s.isRefused() {
		f.refusing[s] = true
	} else {
		delete(f.refusing, s)
	}
}

// drain deletes draining endpoints whose connections have ended.
func (f *family) drain(ctx context.Context, now time.Time) error {
	defer f.report()
	var errs failures.List
	for _, s := range slices.SortedFunc(maps.Keys(f.draining), func(a, b *server) int { return a.key.Compare(b.key) }) {
		errs.Add(s.drain(ctx, f.dataplane, now, drainTimeout))
		f.settle(s)
	}
	errs.Add(f.removeAddresses(ctx))
	errs.Add(f.commitFilter(ctx, true))
	return errs.Err()
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
	var errs failures.List
	addrs, err := f.dataplane.Addresses(ctx, f.key)
	errs.Add(err)
	for _, a := range addrs {
		errs.Add(f.dataplane.DeleteAddress(ctx, a))
	}
	for _, s := range list {
		if s.Family != f.key || s.Flags&dp.Owned == 0 {
			continue
		}
		errs.Add(deleteServer(ctx, f.dataplane, s.ServerKey))
	}
	errs.Add(f.filter.cleanUp(ctx))
	if err := errs.Err(); err != nil {
		return err
	}
	f.metrics.servers.Set(0)
	f.metrics.draining.Set(0)
	return nil
}
