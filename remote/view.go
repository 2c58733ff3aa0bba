package remote

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// layer is a state with the digests of what is in it.
type layer struct {
	full     *sink.FullState
	snapshot *sink.Snapshot
	buckets  buckets
}

func newLayer() *layer {
	l := &layer{snapshot: &sink.Snapshot{}}
	l.full = sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		l.snapshot = s
		return nil
	})
	return l
}

// sync takes what the layer was told, and returns the state before.
func (l *layer) sync(ctx context.Context) (before *sink.Snapshot) {
	before = l.snapshot
	_ = l.full.Sync(ctx) // it takes the snapshot: it cannot fail
	return before
}

// view is what a client knows: the two layers that it is sent, and what they are together. The caller guards it.
type view struct {
	class    localstate.Class // of which only DrainingEndpoints counts
	families []model.Family
	node     *model.Node // nil before the first batch
	shared   *layer
	own      map[model.ServiceName]*localstate.NodePart

	effective *layer
	handed    *sink.Snapshot // what has been flushed of effective
	nodeGiven *model.Node
	pending   localstate.Pending
	triggers  [2][]time.Time
	noLocal   noLocal
}

func newView(opts localstate.Options) *view {
	return &view{
		class: localstate.Class{DrainingEndpoints: opts.DrainingEndpoints}, families: opts.EnabledFamilies(),
		shared: newLayer(), own: map[model.ServiceName]*localstate.NodePart{},
		effective: newLayer(), handed: &sink.Snapshot{}, noLocal: noLocal{},
	}
}

// take applies a complete batch. It does nothing at all if anything in the batch is malformed.
func (v *view) take(ctx context.Context, kind remotev1.Kind, updates []*remotev1.Update) error {
	var d decoder
	for _, u := range updates {
		d.check(u)
	}
	if err := d.err(); err != nil {
		return err
	}
	if v.node == nil && !slices.ContainsFunc(updates, func(u *remotev1.Update) bool { return u.Node != nil }) {
		d.bad("node", "is missing in the first batch")
		return d.err()
	}
	before, touched, node := v.shared, map[model.ServiceName]bool{}, v.node
	if kind == remotev1.Kind_RESET {
		v.shared = newLayer()
	}
	v.takeOwn(&d, updates, touched)
	for _, u := range updates {
		if u.Node != nil {
			v.node = d.node(u.Node)
		}
		for _, c := range u.Services {
			v.takeChange(&d, c)
		}
		for _, t := range u.Triggers {
			i := 0
			if t.Family == uint32(model.IPv6) {
				i = 1
			}
			v.triggers[i] = append(v.triggers[i], time.Unix(0, int64(t.Nanos)))
			v.triggers[i] = v.triggers[i][max(0, len(v.triggers[i])-maxTriggers):]
		}
	}
	old := v.shared.sync(ctx)
	for c := range v.shared.snapshot.ChangesSince(old) {
		v.shared.buckets.change(c)
	}
	if kind == remotev1.Kind_RESET {
		old = before.snapshot
	}
	if node != nil && !slices.Equal(node.IPs, v.node.IPs) {
		for e := range v.shared.snapshot.Services() {
			if len(e.Service.LoadBalancerSourceRanges) > 0 {
				touched[e.Service.Name] = true
			}
		}
	}
	v.combine(ctx, old, touched)
	return nil
}

// takeOwn takes the parts of a batch, and notes the services of which they changed.
func (v *view) takeOwn(d *decoder, updates []*remotev1.Update, touched map[model.ServiceName]bool) {
	own, replaced := v.own, false
	for _, u := range updates {
		if u.OwnReset {
			own, replaced = map[model.ServiceName]*localstate.NodePart{}, true
		}
	}
	for _, u := range updates {
		for _, p := range u.Own {
			name, part := d.part(p)
			if !part.Equal(v.own[name]) {
				touched[name] = true
			}
			if part == nil {
				delete(own, name)
			} else {
				own[name] = part
			}
		}
	}
	if replaced {
		for name := range v.own {
			if own[name] == nil {
				touched[name] = true
			}
		}
	}
	v.own = own
}

func (v *view) takeChange(d *decoder, c *remotev1.ServiceChange) {
	name := d.name(c.Namespace, c.Name)
	full := v.shared.full
	known := v.shared.snapshot.Service(name)
	if known != nil && (c.Deleted || c.Whole) {
		for _, e := range known.Endpoints {
			full.DeleteEndpoint(e.Key())
		}
	}
	if c.Deleted {
		full.DeleteService(name)
		return
	}
	if c.Service != nil {
		full.SetService(d.service(name, c.Service))
	}
	for _, e := range c.Removed {
		if key, ok := d.key(name, e); ok {
			full.DeleteEndpoint(key)
		}
	}
	for _, e := range c.Endpoints {
		full.SetEndpoint(d.endpoint(name, e)) // nil is ignored
	}
}

// check decodes everything in a message, to see whether it is well formed.
func (d *decoder) check(u *remotev1.Update) {
	if u.Node != nil {
		d.node(u.Node)
	}
	for _, c := range u.Services {
		name := d.name(c.Namespace, c.Name)
		if c.Service != nil {
			d.service(name, c.Service)
		}
		for _, e := range c.Endpoints {
			d.endpoint(name, e)
		}
		for _, e := range c.Removed {
			d.key(name, e)
		}
	}
	for _, p := range u.Own {
		d.part(p)
	}
}

// combine brings effective up to date where the shared layer or an own part changed.
func (v *view) combine(ctx context.Context, old *sink.Snapshot, touched map[model.ServiceName]bool) {
	for c := range v.shared.snapshot.ChangesSince(old) {
		if touched[c.Name] || c.New == nil || c.ServiceChanged() {
			touched[c.Name] = true
			continue
		}
		part, service := v.own[c.Name], v.service(c.Name)
		for before, now := range c.Endpoints() {
			key := before
			if key == nil {
				key = now
			}
			v.setEndpoint(service, key.Key(), part.Endpoint(v.class, key.Key(), now))
		}
	}
	for name := range touched {
		v.combineService(name)
	}
	before := v.effective.sync(ctx)
	for c := range v.effective.snapshot.ChangesSince(before) {
		v.note(c)
	}
	if !v.node.Equal(v.nodeGiven) {
		v.pending.Node, v.pending.IPv4, v.pending.IPv6 = true, true, true
	}
}

// service returns a service as it is for this node, or nil.
func (v *view) service(name model.ServiceName) *model.Service {
	e := v.shared.snapshot.Service(name)
	if e == nil {
		return nil
	}
	return narrow(v.own[name].Service(e.Service, v.node), v.families)
}

func (v *view) setEndpoint(service *model.Service, key model.EndpointKey, e *model.Endpoint) {
	if e == nil || service == nil || service.Port(key.Port.Port, key.Port.Protocol) == nil || !slices.Contains(v.families, e.Family()) {
		v.effective.full.DeleteEndpoint(key)
		return
	}
	v.effective.full.SetEndpoint(e)
}

// combineService works a service out anew.
func (v *view) combineService(name model.ServiceName) {
	keys := map[model.EndpointKey]*model.Endpoint{}
	if e := v.effective.snapshot.Service(name); e != nil {
		for _, ep := range e.Endpoints {
			keys[ep.Key()] = nil
		}
	}
	service := v.service(name)
	if service == nil {
		for key := range keys {
			v.effective.full.DeleteEndpoint(key)
		}
		v.effective.full.DeleteService(name)
		return
	}
	part := v.own[name]
	for _, ep := range v.shared.snapshot.Service(name).Endpoints {
		keys[ep.Key()] = ep
	}
	if part != nil {
		for _, ep := range part.Endpoints {
			keys[ep.Key()] = ep
		}
	}
	v.effective.full.SetService(service)
	for key, shared := range keys {
		v.setEndpoint(service, key, part.Endpoint(v.class, key, shared))
	}
}

// note counts a change as pending.
func (v *view) note(c sink.Change) {
	if c.ServiceChanged() {
		v.pending.Services++
		for _, e := range []*sink.ServiceEntry{c.Old, c.New} {
			for _, f := range v.families {
				if e != nil && (len(e.Service.ClusterIPs) == 0 || e.Service.ClusterIP(f).IsValid()) {
					v.pending.IPv4, v.pending.IPv6 = v.pending.IPv4 || f == model.IPv4, v.pending.IPv6 || f == model.IPv6
				}
			}
		}
	}
	any := false
	for before, now := range c.Endpoints() {
		any = true
		if now == nil {
			now = before
		}
		v.pending.IPv4, v.pending.IPv6 = v.pending.IPv4 || now.Family() == model.IPv4, v.pending.IPv6 || now.Family() == model.IPv6
	}
	if any {
		v.pending.Endpoints++
	}
	v.noLocal.note(c)
}

// flush hands over what differs from what was last handed over, in the order that package sink lays down.
func (v *view) flush(r localstate.Receiver) localstate.Changes {
	var changes localstate.Changes
	if v.node != nil && !v.node.Equal(v.nodeGiven) {
		if r, ok := r.(localstate.NodeReceiver); ok {
			r.SetNode(v.node)
			changes.Node = true
		}
		v.nodeGiven = v.node
	}
	var stay []sink.Change
	for c := range v.effective.snapshot.ChangesSince(v.handed) {
		if c.New != nil {
			stay = append(stay, c)
			continue
		}
		for _, e := range c.Old.Endpoints {
			r.DeleteEndpoint(e.Key())
			changes.Endpoints++
		}
		r.DeleteService(c.Name)
		changes.Services++
	}
	for _, c := range stay {
		for before, now := range c.Endpoints() {
			if now == nil {
				r.DeleteEndpoint(before.Key())
				changes.Endpoints++
			}
		}
		if c.ServiceChanged() {
			r.SetService(c.New.Service)
			changes.Services++
		}
		for _, now := range c.Endpoints() {
			if now != nil {
				r.SetEndpoint(now)
				changes.Endpoints++
			}
		}
	}
	if changes.Any() {
		changes.IPv4, changes.IPv6 = v.pending.IPv4, v.pending.IPv6
		changes.TriggersIPv4, changes.TriggersIPv6 = v.triggers[0], v.triggers[1]
	}
	v.handed, v.pending, v.triggers = v.effective.snapshot, localstate.Pending{}, [2][]time.Time{}
	return changes
}

// digest is that of what the server has sent.
func (v *view) digest() *remotev1.Digest {
	if v.node == nil {
		return nil
	}
	return digestMessage(v.shared.buckets.root(), ownDigest(v.node, v.own))
}

// narrow returns a service without the families that are not wanted, or nil if nothing is left of it.
func narrow(s *model.Service, families []model.Family) *model.Service {
	if len(families) == 2 || len(s.ClusterIPs) == 0 {
		return s
	}
	other := func(a netip.Addr) bool { return !slices.Contains(families, model.FamilyOf(a)) }
	out := *s
	out.ClusterIPs = slices.DeleteFunc(slices.Clone(s.ClusterIPs), other)
	if len(out.ClusterIPs) == 0 {
		return nil
	}
	out.ExternalIPs = slices.DeleteFunc(slices.Clone(s.ExternalIPs), other)
	out.LoadBalancerIPs = slices.DeleteFunc(slices.Clone(s.LoadBalancerIPs), other)
	out.LoadBalancerSourceRanges = slices.DeleteFunc(slices.Clone(s.LoadBalancerSourceRanges), func(p netip.Prefix) bool { return other(p.Addr()) })
	out.Ports = slices.Clone(s.Ports)
	v4, v6 := slices.Contains(families, model.IPv4), slices.Contains(families, model.IPv6)
	for i := range out.Ports {
		if !v4 {
			out.Ports[i].RoutesIPv4 = model.Routes{}
		}
		if !v6 {
			out.Ports[i].RoutesIPv6 = model.Routes{}
		}
	}
	if h := s.HealthCheck; h != nil {
		check := *h
		if !v4 {
			check.LocalEndpointsIPv4 = 0
		}
		if !v6 {
			check.LocalEndpointsIPv6 = 0
		}
		out.HealthCheck = &check
	}
	return &out
}

// noLocal counts, by service, the ports with a Local policy that have endpoints, but none on this node.
type noLocal map[model.ServiceName]localstate.NoLocalEndpoints

func (n noLocal) note(c sink.Change) {
	var count localstate.NoLocalEndpoints
	if c.New != nil {
		count = countNoLocal(c.New)
	}
	if count == (localstate.NoLocalEndpoints{}) {
		delete(n, c.Name)
	} else {
		n[c.Name] = count
	}
}

// countNoLocal goes by the routes: one that balances over the Local set and drops if that is empty has endpoints elsewhere.
func countNoLocal(e *sink.ServiceEntry) localstate.NoLocalEndpoints {
	var n localstate.NoLocalEndpoints
	for _, p := range e.Service.Ports {
		for _, f := range model.Families() {
			lacks := func(r model.Route) bool {
				if r.Endpoints != model.LocalSet || r.Empty != model.Drop {
					return false
				}
				for range e.SetEndpoints(p.Name, p.Protocol, f, model.LocalSet) {
					return false
				}
				return true
			}
			internal, external := &n.InternalIPv4, &n.ExternalIPv4
			if f == model.IPv6 {
				internal, external = &n.InternalIPv6, &n.ExternalIPv6
			}
			if lacks(p.Routes(f).ClusterIP) {
				*internal++
			}
			if lacks(p.Routes(f).External) {
				*external++
			}
		}
	}
	return n
}

func (n noLocal) total() localstate.NoLocalEndpoints {
	var sum localstate.NoLocalEndpoints
	for c := range maps.Values(n) {
		sum.InternalIPv4 += c.InternalIPv4
		sum.InternalIPv6 += c.InternalIPv6
		sum.ExternalIPv4 += c.ExternalIPv4
		sum.ExternalIPv6 += c.ExternalIPv6
	}
	return sum
}
