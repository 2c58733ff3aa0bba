package userspace

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// family is what is served in one IP family, and which changes are still to be applied.
type family struct {
	backend *Backend
	family  model.Family
	metrics *metrics

	localPods atomic.Pointer[[]netip.Prefix]
	ports     map[model.PortName]*port
	// frontends is the desired state. A node port is one frontend, with a listener on each address of nodePorts.
	frontends map[frontend.Key]target
	nodePorts []netip.Addr
	listeners map[frontend.Key]listener      // node ports have an address in the key
	shares    map[frontend.Key]*share        // against which the listeners count
	addresses frontend.RefCounts[netip.Addr] // frontends of each
	round     uint64

	full           bool // the next Update of Addresses is a full one
	dirtyAddresses map[netip.Addr]bool
	dirty          map[frontend.Key]bool // frontends
	tried          map[*port]bool        // ports of these, in this call
}

// target is the service port that connections to a frontend belong to.
type target struct {
	frontend frontend.Frontend
	port     *port
}

func newFamily(b *Backend, f model.Family, m *metrics) *family {
	fam := &family{
		backend: b, family: f, metrics: m, full: true,
		ports: map[model.PortName]*port{}, frontends: map[frontend.Key]target{},
		listeners: map[frontend.Key]listener{}, shares: map[frontend.Key]*share{},
		dirtyAddresses: map[netip.Addr]bool{}, dirty: map[frontend.Key]bool{}, tried: map[*port]bool{},
	}
	fam.localPods.Store(new([]netip.Prefix))
	return fam
}

// absorb records changes. It cannot fail: it only notes what apply has to do.
func (f *family) absorb(c *frontend.Changes) {
	if node := c.Node(); node != nil && !slices.Equal(*f.localPods.Load(), node.LocalPods.CIDRs) {
		f.localPods.Store(&node.LocalPods.CIDRs)
	}
	full := c.Full()
	if f.full = f.full || full; full {
		f.round++
	}
	for pc := range c.Ports() {
		if pc.After == nil {
			f.removePort(pc.Before.Name)
			continue
		}
		f.updatePort(pc)
	}
	if full {
		for name, p := range f.ports {
			if p.round != f.round {
				f.removePort(name)
			}
		}
	}
}

func (f *family) updatePort(pc *frontend.PortChange) {
	name := pc.After.Name
	p := f.ports[name]
	if p == nil {
		p = newPort(&f.backend.remembered)
		f.ports[name] = p
	}
	p.round = f.round
	var gone map[frontend.Key]frontend.Frontend
	if pc.Before == nil {
		gone = maps.Clone(p.keys)
	}
	for fc := range pc.FrontendChanges() {
		if fc.After != nil {
			delete(gone, fc.After.Key)
			f.setFrontend(p, *fc.After)
		} else {
			f.removeFrontend(p, fc.Before.Key)
		}
	}
	for k := range gone {
		f.removeFrontend(p, k)
	}
	turned := p.update(pc)
	for k := range p.failed {
		f.dirty[k] = true
	}
	if turned {
		for k := range p.keys {
			f.dirty[k] = true
		}
	}
}

func (f *family) removePort(name model.PortName) {
	p := f.ports[name]
	if p == nil {
		return
	}
	for k := range p.keys {
		f.removeFrontend(p, k)
	}
	p.remove()
	delete(f.ports, name)
}

// setFrontend assigns a frontend to a port, which may take it over from another port.
func (f *family) setFrontend(p *port, fr frontend.Frontend) {
	old, had := f.frontends[fr.Key]
	if had && old == (target{fr, p}) {
		return
	}
	if had {
		delete(old.port.keys, fr.Key)
		delete(old.port.failed, fr.Key)
	} else if fr.Addr.IsValid() && f.addresses.Add(fr.Addr) { // a node port has none
		f.dirtyAddresses[fr.Addr] = true
	}
	p.keys[fr.Key] = fr
	f.frontends[fr.Key] = target{fr, p}
	f.dirty[fr.Key] = true
}

func (f *family) removeFrontend(p *port, k frontend.Key) {
	if _, ok := p.keys[k]; !ok {
		return // another port has taken it over
	}
	delete(p.keys, k)
	delete(p.failed, k)
	delete(f.frontends, k)
	if f.addresses.Remove(k.Addr) {
		f.dirtyAddresses[k.Addr] = true
	}
	f.dirty[k] = true
}

// apply makes the noted changes. Those that fail stay noted.
func (f *family) apply(ctx context.Context, nodePorts []netip.Addr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var add, remove []netip.Addr
	for a := range f.dirtyAddresses {
		if f.addresses[a] == 0 {
			remove = append(remove, a)
		} else if !f.full {
			add = append(add, a)
		}
	}
	if f.full {
		add = slices.Collect(maps.Keys(f.addresses))
	}
	// Addresses are added before their listeners are opened, and removed after they are closed.
	update := f.backend.options.Addresses.Update
	var failed error // that of one address holds up nothing else
	if f.full || len(add) > 0 {
		if failed = update(ctx, f.family, f.full, add, nil); ctx.Err() != nil {
			return errors.Join(failed, ctx.Err())
		}
	}
	if !slices.Equal(nodePorts, f.nodePorts) {
		f.moveNodePorts(nodePorts)
	}
	// In order, so that the same frontends get the last listeners, and the ports of Localhost, after a restart.
	for _, k := range slices.SortedFunc(maps.Keys(f.dirty), frontend.Key.Compare) {
		f.listen(ctx, k)
	}
	f.dirty = map[frontend.Key]bool{} // iterating over a map that was once big takes long
	if len(remove) > 0 && !f.full {
		failed = errors.Join(failed, update(ctx, f.family, false, nil, remove))
	}
	if failed != nil {
		return failed
	}
	f.dirtyAddresses = map[netip.Addr]bool{}
	f.full = false
	return nil
}

// moveNodePorts changes the addresses that serve node ports: it closes listeners on addresses that are gone, and notes
// that the others are to be opened.
func (f *family) moveNodePorts(addresses []netip.Addr) {
	for k, l := range f.listeners {
		if l.target().frontend.Kind == frontend.NodePort && !slices.Contains(addresses, k.Addr) {
			f.closeListener(k)
		}
	}
	f.nodePorts = addresses
	for k := range f.frontends {
		if k.IsNodePort() {
			f.dirty[k] = true
		}
	}
}

// listen opens, updates or closes the listeners of a frontend.
func (f *family) listen(ctx context.Context, k frontend.Key) {
	if t, ok := f.frontends[k]; ok {
		f.tried[t.port] = true
		if delete(t.port.failed, k); k.Protocol == model.SCTP {
			t.port.failed[k] = fmt.Errorf("%v: a user-space proxy cannot serve SCTP", k)
		}
	}
	for at := range f.listenerKeys(k) {
		t, wanted := f.targetAt(at)
		k := t.frontend.Key
		t.frontend.Addr = at.Addr
		wanted = wanted && t.frontend.Protocol != model.SCTP && !t.port.refuses(t.frontend.Kind)
		switch l := f.listeners[at]; {
		case !wanted && l != nil:
			f.closeListener(at)
		case wanted && l != nil:
			l.point(t)
			f.shares[at] = f.backend.listeners.move(f.shares[at], t.port.name())
		case wanted:
			if err := f.openListener(ctx, at, t); err != nil {
				f.metrics.failures.Inc()
				t.port.failed[k] = err
				f.tried[t.port] = true
			}
		}
	}
}

// openListener starts to serve a frontend, unless Addresses has nothing to listen on for it.
func (f *family) openListener(ctx context.Context, at frontend.Key, t target) error {
	addresses := f.backend.options.Addresses.ListenOn(t.frontend)
	if len(addresses) == 0 {
		return nil
	}
	quota := f.backend.listeners
	sh := quota.take(t.port.name())
	if sh == nil {
		return fmt.Errorf("%v: too many listeners (limit for all services: %d)", at, quota.limit)
	}
	l, err := f.open(ctx, t, addresses)
	if err != nil {
		quota.release(sh)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w (by another program of this host: it listens there, or one of its connections has this port)",
				err)
		}
		return err
	}
	f.listeners[at], f.shares[at] = l, sh
	return nil
}

// targetAt returns what a listener is for. At an address of the node, an external IP comes before a node port (S59).
func (f *family) targetAt(at frontend.Key) (target, bool) {
	t, ok := f.frontends[at]
	if !ok && slices.Contains(f.nodePorts, at.Addr) {
		at.Addr = netip.Addr{}
		t, ok = f.frontends[at]
	}
	return t, ok
}

// listenerKeys returns the keys of a frontend's listeners: a node port has one on each of the node's addresses.
func (f *family) listenerKeys(k frontend.Key) iter.Seq[frontend.Key] {
	addresses := []netip.Addr{k.Addr}
	if k.IsNodePort() {
		addresses = f.nodePorts
	}
	return func(yield func(frontend.Key) bool) {
		for _, a := range addresses {
			k.Addr = a
			if !yield(k) {
				return
			}
		}
	}
}

// closeListener closes the listener of a frontend. Whatever it has accepted is still served.
func (f *family) closeListener(k frontend.Key) {
	l := f.listeners[k]
	l.close()
	f.backend.own.stopListening(k.Protocol, l.addr())
	delete(f.listeners, k)
	f.backend.listeners.release(f.shares[k])
	delete(f.shares, k)
}

// closeAll closes all listeners.
func (f *family) closeAll() {
	for k := range f.listeners {
		f.closeListener(k)
	}
	f.metrics.listeners.Set(0)
}

// refuse tells the table which of the service ports that were tried are not served.
func (f *family) refuse(c *frontend.Changes) {
	for p := range f.tried {
		if pc := c.Port(p.name()); pc != nil {
			pc.Report(slices.Collect(maps.Values(p.failed)), func() bool { return f.servesExternal(p) })
		}
	}
	f.tried = map[*port]bool{}
}

// servesExternal reports whether a port is served to outside clients: if this backend is for loopback addresses alone,
// by the backend next to it.
func (f *family) servesExternal(p *port) bool {
	if f.backend.loopbackOnly {
		return true
	}
	for k, fr := range p.keys {
		if fr.Kind == frontend.ClusterIP {
			continue
		}
		if p.failed[k] == nil {
			return true
		}
		for at := range f.listenerKeys(k) { // a node port may be served on some of the addresses
			if f.listeners[at] != nil {
				return true
			}
		}
	}
	return false
}
