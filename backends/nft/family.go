package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// family is one of the two tables: what is in it, as far as this process put it there or found it there.
type family struct {
	dataplane dp.Interface
	options   *Options
	metrics   *metrics
	key       dp.TableKey

	// inForce is what the table does, nil if that is not known: then everything is read and compared.
	inForce *sink.Snapshot
	// failed is the error of the last Sync.
	failed error
	// grow: a map was too small, take no chances with its size.
	grow bool
	// unrepaired: a repair has failed. That the table has drifted is not known any more once it has been read.
	unrepaired bool
	state
}

// state is what the table holds. While it is changed it is ahead of the table; if the table does not follow, it is thrown
// away.
type state struct {
	there        bool // the table
	replaceTable bool // it is not like this one, and is deleted with all that it holds
	config       *config
	sets         *sets
	slots        map[*dp.Set]int // elements of the maps that have a size
	chains       map[string][]dp.RuleID
	chainNames   map[dispatch]string // of chains that are there
	services     map[model.ServiceName][]*port
	claims       claims
	clusterIPs   counted
	hairpins     counted
}

// newState returns the state of a table of which nothing is known, with room for a number of services.
func newState(services int) state {
	return state{
		chains:     map[string][]dp.RuleID{},
		chainNames: map[dispatch]string{},
		services:   make(map[model.ServiceName][]*port, services),
		claims:     newClaims(services),
		clusterIPs: newCounted(services),
		hairpins:   newCounted(0),
		slots:      map[*dp.Set]int{},
	}
}

// change is a service port that differs: as it is in force, and as it is to be. Either may be nil.
type change struct{ before, after *port }

// sync puts a snapshot in force, by what changed if that is known, and otherwise by comparing everything.
func (f *family) sync(ctx context.Context, s *sink.Snapshot) error {
	var err error
	if f.inForce != nil && !f.dataplane.Drifted(f.key) {
		if err = f.update(ctx, s); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			f.inForce = nil
			return err
		}
		if !isToBeDoneAgain(err) && !errors.Is(err, errNodeChanged) {
			f.countFailure(err)
		}
		klog.FromContext(ctx).Info("Comparing the whole table", "table", f.key, "reason", err)
	}
	for range 5 {
		if err = f.compare(ctx, s); !isToBeDoneAgain(err) {
			break
		}
	}
	if err != nil && ctx.Err() == nil {
		f.countFailure(err)
	}
	return err
}

// isToBeDoneAgain tells whether an attempt came to nothing only because somebody else was faster or a map has to be bigger.
func isToBeDoneAgain(err error) bool { return errors.Is(err, dp.ErrStale) || errors.Is(err, errFull) }

// countFailure notes an attempt that has failed.
func (f *family) countFailure(err error) {
	failures := f.metrics.syncFailures
	if errors.Is(err, errCleanUp) {
		failures = f.metrics.cleanUpFailures
	}
	failures.WithLabelValues(f.key.Family.String()).Inc()
}

// chainFor returns the name of the chain that does what d says, and sees to it that it is there.
func (f *family) chainFor(p *plan, d dispatch) string {
	if name, ok := f.chainNames[d]; ok {
		return name
	}
	name := d.chainName()
	if d.affinity() != "" {
		return name // changeAffinity makes those
	}
	for _, ch := range f.config.chains(f.sets, d) {
		p.ensure(ch)
	}
	f.chainNames[d] = name
	return name
}

// errNodeChanged: the node has changed so much that all services may change.
var errNodeChanged = errors.New("the way to detect local pods changed")

// update puts in force what changed since the last time.
func (f *family) update(ctx context.Context, s *sink.Snapshot) error {
	cfg := newConfig(f.key.Family, f.options, s.Node())
	if !cfg.localPods.Equal(f.config.localPods) {
		return errNodeChanged
	}
	before := f.inForce
	f.inForce = nil // until it is known again
	p := newPlan(f)
	f.changeConfig(p, cfg)

	var changes []change
	var keys []claimKey
	for c := range s.ChangesSince(before) {
		changes, keys = f.changeService(ctx, c, changes, keys)
	}
	changes = f.resolve(ctx, changes, keys)
	for _, c := range changes {
		if c.before != nil && c.after != nil {
			c.after.Cluster = assignSlots(c.before.Cluster, c.after.Cluster)
			c.after.Local = assignSlots(c.before.Local, c.after.Local)
		}
		p.changePort(c.before, c.after)
	}
	if err := f.apply(ctx, p); err != nil {
		return err
	}
	f.inForce = s
	return nil
}

// changeConfig follows changes of the node.
func (f *family) changeConfig(p *plan, cfg *config) {
	if cfg.equal(f.config) {
		return
	}
	sp := p.of(f.sets.nodePortIPs)
	for _, a := range f.config.nodePortIPs {
		sp.gone = append(sp.gone, addrElement(a))
	}
	for _, a := range cfg.nodePortIPs {
		sp.add = append(sp.add, addrElement(a))
	}
	f.config = cfg
	for _, ch := range cfg.baseChains(f.sets) {
		p.ensure(ch)
	}
}

// changeService appends the ports of a service that change, and the keys that they claim or no longer claim.
func (f *family) changeService(ctx context.Context, c sink.Change, changes []change, keys []claimKey) ([]change, []claimKey) {
	olds := f.services[c.Name]
	news := f.config.newPorts(ctx, c.New)
	claimed := func(p *port, do func(claimKey, claim)) {
		for i := range p.fronts {
			k, cl := p.claim(&p.fronts[i])
			do(k, cl)
			keys = append(keys, k)
		}
	}
	for _, o := range olds {
		claimed(o, f.claims.remove)
	}
	for _, n := range news {
		claimed(n, f.claims.add)
		changes = append(changes, change{portNamed(olds, n.Name), n})
	}
	for _, o := range olds {
		if portNamed(news, o.Name) == nil {
			changes = append(changes, change{o, nil})
		}
	}
	if f.services[c.Name] = news; len(news) == 0 {
		delete(f.services, c.Name)
	}
	return changes, keys
}

func portNamed(ports []*port, name model.PortName) *port {
	for _, p := range ports {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// resolve finds out who has the keys, and appends the ports that change because they get or lose one.
func (f *family) resolve(ctx context.Context, changes []change, keys []claimKey) []change {
	changing := make(map[*port]bool, len(changes))
	for _, c := range changes {
		changing[c.after] = true
	}
	for _, k := range keys {
		for i, cl := range f.claims.of(k) {
			p := portNamed(f.services[cl.name.Service], cl.name)
			fr := p.front(k)
			if lost := i > 0; fr.lost != lost {
				if !changing[p] {
					// What is in force is not to be written to: see changePort.
					old := p
					p = old.clone()
					changing[p] = true
					changes = append(changes, change{old, p})
					f.replacePort(old, p)
					fr = p.front(k)
				}
				fr.lost = lost
				if lost {
					klog.FromContext(ctx).Info("An address and port, or node port, belongs to another service port",
						"port", cl.name, "owner", f.claims.winner(k).name)
				}
			}
		}
	}
	return changes
}

func (p *port) clone() *port {
	c := *p
	c.fronts = slices.Clone(p.fronts)
	return &c
}

func (f *family) replacePort(old, new *port) {
	ports := slices.Clone(f.services[old.Name.Service])
	ports[slices.Index(ports, old)] = new
	f.services[old.Name.Service] = ports
}

// errFull: a map that has a size is full.
var errFull = errors.New("a map has become too small")

// errCleanUp: what is wanted is in force, and what is no longer needed is there, too.
var errCleanUp = errors.New("remove what is no longer needed")

// apply puts a plan in force.
func (f *family) apply(ctx context.Context, p *plan) error {
	f.clusterIPs.settle(p.of(f.sets.clusterIPs), addrElement)
	f.hairpins.settle(p.of(f.sets.hairpin), hairpinElement)
	first, second := p.transactions()
	for _, sp := range p.sets {
		if !hasSlots(sp.set) {
			continue
		}
		if f.slots[sp.set]+len(sp.add) > int(sp.set.Size) {
			f.grow = true
			return fmt.Errorf("%s: %w", sp.set.Name, errFull)
		}
		f.slots[sp.set] += len(sp.add) - len(sp.gone)
	}
	if err := f.commit(ctx, first); err != nil {
		return err
	}
	if !first.IsEmpty() && !second.IsEmpty() {
		letPacketsPass(ctx)
	}
	if err := f.commit(ctx, second); err != nil {
		return fmt.Errorf("%w: %w", errCleanUp, err)
	}
	f.there, f.replaceTable = true, false
	return nil
}

// letPacketsPass waits for the packets that were led by what the first transaction replaced, and have yet to look up what the
// second one removes. The kernel does not hold a transaction back for them: without the pause one flow was lost in 900,000
// waves of resizing, on a virtual machine whose processors do not always run (Linux 6.18).
func letPacketsPass(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Millisecond):
	}
}

// commit applies a transaction, in pieces if a socket cannot hold it: an unprivileged process may not have big buffers.
func (f *family) commit(ctx context.Context, tx *dp.Transaction) error {
	if tx.IsEmpty() {
		return nil
	}
	err := f.dataplane.Apply(ctx, tx)
	if !errors.Is(err, syscall.EMSGSIZE) {
		return err
	}
	one, two, ok := tx.Split()
	if !ok {
		return err
	}
	if err := f.commit(ctx, one); err != nil {
		return err
	}
	return f.commit(ctx, two)
}

// cleanUp deletes the table, if there is one.
func (f *family) cleanUp(ctx context.Context) error {
	f.inForce, f.state = nil, newState(0)
	tx := dp.NewTransaction(f.key)
	tx.Unconditional = true
	tx.AddTable("") // or deleting fails
	tx.DeleteTable()
	return f.dataplane.Apply(ctx, tx)
}

// sortedNames returns the keys of m that are not in wanted.
func sortedNames[V any](m map[string]V, wanted map[string]bool) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !wanted[name] {
			names = append(names, name)
		}
	}
	return names
}
