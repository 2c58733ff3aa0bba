package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// family is the backend in one IP family: the wanted state, and what HNS was last known to have.
type family struct {
	key         model.Family
	options     *Options
	features    dp.Features
	dataplane   dp.Interface
	record      *record
	unsupported *unsupported
	metrics     *metrics

	network   dp.Network
	providers providers // of network
	nodeIPs   []netip.Addr
	// clusterIPs are those of all services: no endpoint may have one. In overlay networks each has an HNS endpoint, and
	// HNS has one for each address.
	clusterIPs map[netip.Addr]bool
	endpoints  *endpoints
	balancers  map[dp.Key]*balancer
	ports      map[model.PortName][]dp.Key // what each service port asks for
	dirty      map[*balancer]bool          // for the next commit to check
	// altered has the settings that HNS makes of requested ones, where the two differ.
	altered map[settings]settings
	failed  []*balancer // deletions and repairs that failed in this commit
	// Whether the network and these lists have been read for the current commit, and the addresses whose endpoints HNS
	// has refused to create in it.
	readNet, listedBalancers, listedEndpoints bool
	refused                                   map[netip.Addr]error
	root                                      string // the ID of Options.RootEndpoint, if it has been read

	taken   bool // the changes of the last Sync were accepted
	skipped bool // the family cannot be served in this network
	known   bool // HNS has been read, and nothing has failed since
	broken  bool // the last repair failed

	undeleted, undeletedEndpoints failures.Lines // about load balancers and endpoints that could not be deleted
}

// balancer is a load balancer: the wanted one, and the one that HNS has.
type balancer struct {
	key dp.Key
	// asked is what service ports ask for. There are several only for health checks: one VIP of several ports.
	asked map[model.PortName]*spec
	have  *dp.LoadBalancer // nil: HNS has none
	vip   string           // ID of the endpoint of the address itself, in overlay networks
	last  kind             // what it was for, when a service port last asked for it
	// seen is what HNS had instead at the last comparison, and repairs is how often it has had that.
	seen    *dp.LoadBalancer
	repairs int
	err     error // why the last attempt to make it as it should be failed
}

// want returns the wanted load balancer and its service port; nil if no port wants one. A service port at that address
// comes before health checks of others there.
func (b *balancer) want() (model.PortName, *spec) {
	var owner model.PortName
	var s *spec
	for name, other := range b.asked {
		if s == nil || s.root && !other.root || s.root == other.root && name.Compare(owner) < 0 {
			owner, s = name, other
		}
	}
	return owner, s
}

func newFamily(f model.Family, o *Options, features dp.Features, r *record, u *unsupported, m *metrics) *family {
	return &family{key: f, options: o, features: features, dataplane: o.Dataplane, record: r, unsupported: u, metrics: m,
		endpoints: newEndpoints(), balancers: map[dp.Key]*balancer{}, ports: map[model.PortName][]dp.Key{},
		dirty: map[*balancer]bool{}, refused: map[netip.Addr]error{}, clusterIPs: map[netip.Addr]bool{},
		altered: map[settings]settings{}}
}

func (f *family) isOverlay() bool { return strings.EqualFold(f.network.Type, "Overlay") }

// apply applies the changes of the family.
func (f *family) apply(ctx context.Context, c *frontend.Changes) error {
	full := c.Full() || !f.known
	nodeIPs := c.Node().IPs
	rebuild := c.Full() || !f.taken || !slices.Equal(nodeIPs, f.nodeIPs)
	f.nodeIPs, f.taken = nodeIPs, false
	if full {
		f.known = false
		if err := f.read(ctx); err != nil {
			return err
		}
	}
	changes := c
	var gone map[model.PortName][]dp.Key
	if rebuild {
		changes, gone = c.All(), maps.Clone(f.ports)
		clear(f.clusterIPs)
	}
	f.reserve(changes.ClusterIPs())
	for p := range changes.Ports() {
		if f.change(ctx, p); p.After != nil {
			delete(gone, p.After.Name)
		}
	}
	for name := range gone {
		f.forget(name)
	}
	if full {
		if err := f.adopt(ctx); err != nil {
			return err
		}
	}
	f.known = false
	failed := map[model.PortName][]error{}
	err := f.commit(ctx, func(name model.PortName, err error) { failed[name] = append(failed[name], err) })
	for name, errs := range failed {
		c.Port(name).Report(errs, func() bool { return f.servesExternal(name) })
	}
	f.taken = true
	c.Accept() // what else has failed is found by reading
	if err == nil {
		f.known, f.broken = true, false
	}
	return err
}

// read reads the network and its endpoints.
func (f *family) read(ctx context.Context) error {
	if err := f.record.load(ctx); err != nil {
		return err
	}
	if _, err := f.readNetwork(ctx); err != nil {
		return err
	}
	return f.readEndpoints(ctx)
}

// readNetwork reads the network, and reports whether it was recreated.
func (f *family) readNetwork(ctx context.Context) (renewed bool, err error) {
	n, err := f.dataplane.Network(ctx, f.options.Network)
	if errors.Is(err, dp.ErrNotFound) {
		return false, fmt.Errorf("HNS network %q does not exist; has the CNI plugin created it? %w",
			f.options.Network, err)
	}
	if err != nil {
		return false, fmt.Errorf("HNS network %q: %w", f.options.Network, err)
	}
	before := f.network
	f.network, f.readNet = n, true
	if renewed = before.ID != "" && before.ID != n.ID; renewed {
		klog.FromContext(ctx).Info("The HNS network was recreated", "network", n.Name, "family", f.key)
	}
	if renewed || !slices.Equal(before.RemoteSubnets, n.RemoteSubnets) {
		f.providers = newProviders(n.RemoteSubnets)
		for _, b := range f.balancers { // endpoints may be on other nodes than was known
			f.dirty[b] = true
		}
	}
	if len(n.Malformed) > 0 && !slices.Equal(before.Malformed, n.Malformed) {
		klog.FromContext(ctx).Error(nil, "Ignoring malformed remote subnets of the HNS network", "network", n.Name,
			"first", n.Malformed[0], "count", len(n.Malformed))
	}
	return renewed, f.checkNetwork(ctx)
}

// checkNetwork returns an error if something is missing for the type of the network. In an overlay network a family
// without a source VIP cannot be served: Windows has no overlay networks for IPv6.
func (f *family) checkNetwork(ctx context.Context) error {
	skipped := f.skipped
	f.skipped = false
	if !f.isOverlay() {
		return nil
	}
	if !f.features.RemoteSubnet {
		return &sink.PermanentError{Err: fmt.Errorf("overlay networks are %w", dp.ErrNotSupported)}
	}
	if !f.options.SourceVIP.IsValid() {
		return &sink.PermanentError{Err: fmt.Errorf("network %q is an overlay network, which needs a source VIP",
			f.network.Name)}
	}
	if f.skipped = model.FamilyOf(f.options.SourceVIP) != f.key; f.skipped && !skipped {
		klog.FromContext(ctx).Info("Not serving this family: the overlay network has no source VIP for it",
			"family", f.key, "network", f.network.Name)
	}
	return nil
}

// readEndpoints lists the endpoints of the network.
func (f *family) readEndpoints(ctx context.Context) error {
	list, err := f.dataplane.Endpoints(ctx, f.network.ID)
	if err != nil {
		return unreadable{fmt.Errorf("endpoints of HNS network %q: %w", f.network.Name, err)}
	}
	f.endpoints.set(list, f.key)
	f.listedEndpoints, f.root = true, ""
	return nil
}

// adopt compares with the load balancers that HNS has. Those at the address and port of a service are taken over,
// whoever created them; those in the record that belong to no service any more are deleted. All others belong to
// another program.
func (f *family) adopt(ctx context.Context) error {
	_, err := f.compare(ctx)
	for _, b := range f.balancers {
		f.dirty[b] = true
	}
	return err
}

// compare reads the load balancers and returns whether any of the backend's differs from what it was known to be.
func (f *family) compare(ctx context.Context) (differs bool, err error) {
	list, err := f.dataplane.LoadBalancers(ctx)
	if err != nil {
		return false, unreadable{fmt.Errorf("list load balancers: %w", err)}
	}
	f.listedBalancers = true
	there := map[dp.Key]bool{}
	clear(f.endpoints.usedByOthers)
	for i := range list {
		actual := &list[i]
		b := f.balancers[actual.Key]
		if actual.Key.Family != f.key || actual.Foreign || there[actual.Key] || b == nil && !f.record.has(actual.Key) {
			for _, id := range actual.Endpoints {
				f.endpoints.usedByOthers[id] = true
			}
			continue
		}
		if b == nil {
			b = &balancer{key: actual.Key, asked: map[model.PortName]*spec{}}
			f.balancers[actual.Key] = b
		}
		there[actual.Key] = true
		if f.isFutile(ctx, b, actual) {
			continue
		}
		if b.have == nil || b.have.ID != actual.ID || !b.have.SameAs(actual) {
			differs = true
			f.setHave(b, actual)
			f.dirty[b] = true
		}
	}
	for key, b := range f.balancers {
		if !there[key] && b.have != nil {
			differs = true
			f.setHave(b, nil)
			f.dirty[b] = true
		}
	}
	return differs, nil
}

// check repairs what others have changed. What failed at the last Sync is left to the next one.
func (f *family) check(ctx context.Context, _ *frontend.Changes) (frontend.CheckResult, error) {
	if !f.known && !f.broken {
		return frontend.CheckResult{}, nil // the next Sync does everything
	}
	full := f.broken
	f.known, f.broken = false, true // until all of this has succeeded
	renewed, err := f.readNetwork(ctx)
	if err != nil {
		return frontend.CheckResult{}, err
	}
	if renewed || full {
		if err := f.readEndpoints(ctx); err != nil {
			return frontend.CheckResult{}, err
		}
	}
	differs, err := f.compare(ctx)
	if err != nil {
		return frontend.CheckResult{}, err
	}
	if full || len(f.dirty) > 0 || len(f.endpoints.unused) > 0 {
		if err := f.commit(ctx, nil); err != nil {
			return frontend.CheckResult{}, err
		}
	}
	f.known, f.broken = true, false
	f.readNet, f.listedBalancers, f.listedEndpoints = false, false, false
	if renewed || differs {
		klog.FromContext(ctx).Info("Repaired load balancers that another program had changed", "family", f.key)
	}
	return frontend.CheckResult{Repaired: renewed || differs}, nil
}

// cleanUp deletes the backend's load balancers and endpoints.
func (f *family) cleanUp(ctx context.Context) error {
	f.known = false
	if err := f.record.load(ctx); err != nil {
		return err
	}
	for name := range f.ports {
		f.forget(name)
	}
	_, err := f.compare(ctx)
	if err != nil {
		return err
	}
	for _, b := range f.balancers {
		f.dirty[b] = true
	}
	network, err := f.dataplane.Network(ctx, f.options.Network)
	if err != nil && !errors.Is(err, dp.ErrNotFound) {
		return err
	}
	f.network, f.skipped = network, true
	if err == nil { // otherwise its endpoints are gone with it
		if err := f.readEndpoints(ctx); err != nil {
			return err
		}
	}
	var errs failures.List
	errs.Add(f.commit(ctx, nil))
	for b := range f.dirty {
		errs.Add(fmt.Errorf("load balancer %v: %w", b.key, b.err))
	}
	return errors.Join(errs.Err(), f.deleteUnused(ctx))
}
