package ipvs

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// family is the backend in one IP family. It sees to the order in which its parts are read, computed and applied.
type family struct {
	key       model.Family
	options   *Options
	dataplane dp.Interface
	metrics   *familyMetrics
	nodePorts *nodeaddr.Tracker
	hosts     *nodeaddr.Tracker // all addresses of the host

	ports     *ports // what is wanted of the following parts
	servers   *servers
	addresses *addresses
	filter    *filter

	drained time.Time // the last check for connections that have ended
	missing missing
	known   bool // the kernel has been read, and nothing has failed since
}

// newFamily returns a family without any known state. The kernel may have no IPVS, which only cleaning up allows.
func newFamily(f model.Family, o *Options, g *shared.Group) *family {
	d, m := o.Dataplane, newMetrics(g, f)
	if d != nil {
		d = &countedRequests{d, m}
	}
	filter := newFilter(o.NFTables, nft.TableKey{Family: f, Name: tableName})
	servers := newServers()
	return &family{key: f, options: o, dataplane: d, metrics: m, ports: newPorts(o, servers, filter), servers: servers,
		addresses: newAddresses(d, filter, newOthers(f, o)), filter: filter, drained: time.Now()}
}

// apply applies the changes of the family.
func (f *family) apply(ctx context.Context, c *frontend.Changes, next *config) error {
	full := c.Full() || !f.known
	rebuild := full || !next.equal(f.ports.config)
	if full {
		f.metrics.resyncs.Inc()
		f.known = false
		if err := f.read(ctx); err != nil {
			return err
		}
	}
	changes := c
	if rebuild {
		f.reset(next)
		changes = c.All()
	}
	f.ports.update(changes)
	f.filter.setHairpins(changes.Hairpins())
	f.filter.setHealthChecks(changes.HealthChecks())
	if c.Retry() {
		f.addresses.retry()
	}
	return f.commit(ctx, c)
}

// read reads the virtual servers, addresses and rules of the kernel.
func (f *family) read(ctx context.Context) error {
	list, err := f.listServers(ctx)
	if err != nil {
		return err
	}
	there := map[dp.ServerKey]bool{}
	f.ports.foreign = map[uint32]bool{}
	for _, actual := range list {
		if actual.Family == f.key && actual.Flags&dp.Owned == 0 && actual.Mark != 0 {
			f.ports.foreign[actual.Mark] = true
		}
		if actual.Family != f.key || actual.Flags&dp.Owned == 0 {
			continue
		}
		destinations, err := f.dataplane.Destinations(ctx, actual.ServerKey)
		if err != nil {
			return err
		}
		f.servers.at(actual.ServerKey).adopt(actual, destinations)
		there[actual.ServerKey] = true
	}
	for key, s := range f.servers.byKey {
		if !there[key] {
			s.lose()
		}
	}
	f.filter.known = false
	if err := f.addresses.others.read(ctx, f.dataplane); err != nil {
		return err
	}
	return f.addresses.read(ctx, f.key)
}

// reset forgets what is wanted, except what everything needs.
func (f *family) reset(next *config) {
	f.filter.reset()
	for _, chain := range next.baseChains(f.filter.sets) {
		f.filter.addChain(chain)
	}
	f.addresses.host = next.hostIPs
	f.ports.reset(next)
	f.addresses.guardAll()
}

// commit applies everything. If a request fails, the service port that it was made for is refused; an obsolete object
// stays until it can be deleted. After any other error the kernel has to be read.
func (f *family) commit(ctx context.Context, c *frontend.Changes) error {
	err := f.execute(ctx, c)
	f.refuse(c)
	c.Accept() // what else has failed is found by reading
	f.known = err == nil
	return err
}

// execute makes the requests of a commit. First comes what serves new connections, then the packet filter that sends
// them there; then obsolete objects are deleted. An address is on the dummy interface only while the filter guards it.
func (f *family) execute(ctx context.Context, c *frontend.Changes) error {
	defer f.report()
	var errs failures.List
	grown, taken := f.grow(ctx, &errs)
	for tried := grown; f.ports.avoid(c, tried); {
		var more []*server
		tried, more = f.grow(ctx, &errs)
		grown = append(slices.DeleteFunc(grown, func(s *server) bool { return slices.Contains(tried, s) }), tried...)
		taken = append(taken, more...)
	}
	if len(taken) > 0 {
		klog.FromContext(ctx).Info("Taking over virtual servers of another program", "family", f.key,
			"count", len(taken), "first", taken[0].key)
	}
	f.addresses.follow(f.ports.config.apiServers)
	f.addresses.prepareAll()
	if err := f.commitFilter(ctx, false); err != nil {
		return errors.Join(err, errs.Err())
	}
	errs.Add(f.addresses.add(ctx))
	for _, s := range grown {
		errs.Add(s.note(ctx, s.shrink(ctx, f.dataplane)))
		f.settle(s)
	}
	errs.Add(logged(ctx, &f.addresses.undeleted, f.addresses.remove(ctx)))
	errs.Add(f.commitFilter(ctx, true))
	return errs.Err()
}

// grow makes the virtual servers that may have changed serve new connections. It returns those for which that did not
// fail, and those of them that were other programs'.
func (f *family) grow(ctx context.Context, errs *failures.List) (grown, taken []*server) {
	for _, s := range f.servers.takeDirty() {
		err := s.grow(ctx, f.dataplane)
		f.filter.show(s)
		if err != nil {
			errs.Add(err)
			continue
		}
		if s.taken {
			taken = append(taken, s)
		}
		f.addresses.update(s)
		grown = append(grown, s)
	}
	return grown, taken
}

// commitFilter applies the packet filter.
func (f *family) commitFilter(ctx context.Context, final bool) error {
	err := f.filter.commit(ctx, final)
	if err != nil {
		f.metrics.filterFailures.Inc()
	}
	return err
}

// settle updates what is known of a virtual server that has changed.
func (f *family) settle(s *server) {
	f.addresses.update(s)
	f.servers.settle(s)
}

// report sets the metrics of virtual servers and of endpoints that drain.
func (f *family) report() {
	f.metrics.servers.Set(float64(len(f.servers.byKey)))
	f.metrics.draining.Set(float64(f.servers.endpointsDraining))
}

// drain deletes draining endpoints whose connections have ended.
func (f *family) drain(ctx context.Context) error {
	defer f.report()
	var errs failures.List
	for _, s := range sortedServers(f.servers.draining) {
		errs.Add(s.drain(ctx, f.dataplane))
		f.settle(s)
	}
	errs.Add(f.addresses.remove(ctx))
	errs.Add(f.commitFilter(ctx, true)) // which may have kept chains
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
		return err
	}
	var errs failures.List
	addrs, err := f.dataplane.Addresses(ctx, f.key)
	errs.Add(err)
	for _, a := range addrs {
		errs.Add(f.dataplane.DeleteAddress(ctx, a))
	}
	errs.Add(f.dataplane.Deliver(ctx, f.key, 0))
	for _, s := range list {
		if s.Family == f.key && s.Flags&dp.Owned != 0 {
			errs.Add(f.dataplane.DeleteServer(ctx, s.ServerKey))
		}
	}
	errs.Add(f.filter.cleanUp(ctx))
	if err := errs.Err(); err != nil {
		return err
	}
	f.metrics.servers.Set(0)
	f.metrics.draining.Set(0)
	return nil
}
