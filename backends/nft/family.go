package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// family is one of the two tables.
type family struct {
	dataplane dp.Interface
	options   *Options
	metrics   *metrics
	key       dp.TableKey

	state state
	// failed is why the last Sync failed. Syncs return it until one is a retry, which costs a comparison.
	failed error
	// leftover says when to log that obsolete objects stay.
	leftover failures.Lines
	// table is the part of the kernel's table that this process wrote or read: all of it, unless the state is unknown.
	table *table
	// lowered has the sets of clients where some may have a longer affinity timeout than their service port. again
	// makes the backend check when the next of them is due.
	lowered loweredTimeouts
	again   chan struct{}
}

// state is what is known about a family's table. The package documentation draws the transitions.
type state uint8

const (
	// unknown: at first, and after a failure or [Backend.ForceResync]. Everything is read and corrected, except for the
	// slots. These are rewritten: the kernel writes them faster than it lists them.
	unknown state = iota
	// known: the table does what was accepted. A Sync applies the difference.
	known
	// leftovers: known, but obsolete objects are still there. Before Linux 6.2, for example, a chain counts as used for
	// a while after the last reference to it is gone.
	leftovers
	// suspect: another program may have changed the table. Everything is read, including the slots. Writing them is a
	// big transaction, during which the backend does not listen, so it would suspect the table again afterwards: on a
	// node where other programs keep changing rulesets that would never end.
	suspect
)

// table is the content of a table.
type table struct {
	there   bool
	replace bool // it is of another layout, and is deleted with all that it holds
	config  *config
	strays  int // cluster IPs outside the service CIDRs
	sets    *sets
	slots   [numSets]int // elements of the maps with slots; of others not all are counted
	chains  map[string][]dp.RuleID
	// extraSets are the sets that not every table has: those of clients, and of source ranges.
	extraSets map[string]bool
	clients   *clientSets
	names     map[actions]string // of the shared chains
	own       map[model.PortName]*ownPort
	ids       map[uint32]bool // of these
	// sources has the service ports that restrict sources, and uses how many service ports use a chain for that, or one
	// that mixedChains returns; idle has the mixed ones that none uses any more.
	sources map[model.PortName]rules.SourcesID
	uses    frontend.RefCounts[string]
	idle    map[string]bool
	// leftovers are obsolete objects that could not be removed yet.
	leftovers leftoverObjects
}

// leftoverObjects are obsolete objects, by kind.
type leftoverObjects struct {
	elements     [numSets][]dp.Element
	chains, sets []string
}

func newTable() *table {
	return &table{config: &config{}, sets: newSets(), chains: map[string][]dp.RuleID{},
		extraSets: map[string]bool{}, clients: &clientSets{namespaces: map[string]*namespaceClients{}},
		names: map[actions]string{}, own: map[model.PortName]*ownPort{}, ids: map[uint32]bool{},
		sources: map[model.PortName]rules.SourcesID{}, idle: map[string]bool{}}
}

// apply is the callback of the table of frontends.
func (f *family) apply(ctx context.Context, c *frontend.Changes) error {
	if f.failed != nil && f.state == unknown && !c.Retry() {
		return f.failed
	}
	if c.Full() {
		f.state = unknown
	}
	f.lookForDrift()
	f.failed = nil
	err := f.sync(ctx, c)
	if err == nil {
		return nil
	}
	if err = fmt.Errorf("nft: %w", err); !errors.Is(err, dp.ErrStale) {
		f.state = unknown
	}
	if ctx.Err() == nil { // otherwise it was cancelled, not refused
		f.failed = err
		f.countFailure()
	}
	return err
}

// config returns the configuration for a node: that of the table, if it is for the same one.
func (f *family) config(node *model.Node) *config {
	if f.table != nil && f.table.config.node == node {
		return f.table.config
	}
	return newConfig(f.key.Family, f.options, node)
}

// sync applies the changes to the table: incrementally if the table is known, otherwise by a full comparison.
func (f *family) sync(ctx context.Context, c *frontend.Changes) error {
	cfg := f.config(c.Node())
	if f.state == known || f.state == leftovers {
		err := f.update(ctx, cfg, c)
		if err == nil {
			return nil
		}
		if f.state = unknown; errors.Is(err, dp.ErrStale) {
			f.state = suspect
		}
		if ctx.Err() != nil {
			return err
		}
		if f.state == unknown && !errors.Is(err, errFull) && !errors.Is(err, errNodeChanged) {
			f.countFailure()
		}
		klog.FromContext(ctx).Info("Comparing the whole table", "table", f.key, "reason", err)
	}
	_, err := f.compareAgain(ctx, cfg, c)
	return err
}

func (f *family) countFailure() { f.metrics.syncFailures.Inc() }

// errNodeChanged: the node has changed so much that all services may change.
var errNodeChanged = errors.New("the service CIDRs, or the way to detect local pods, changed")

// errFull: a map that has a size is full.
var errFull = errors.New("a map is too small for its new elements")

// update applies what changed since the last time.
func (f *family) update(ctx context.Context, cfg *config, c *frontend.Changes) error {
	if before := f.table.config; !cfg.localPods.Equal(before.localPods) ||
		!slices.Equal(cfg.serviceCIDRs, before.serviceCIDRs) {
		return errNodeChanged
	}
	p := newPlan(f.table)
	p.changeBase(cfg, c.Hairpins(), c.ClusterIPs())
	for pc := range c.Ports() {
		p.changePort(pc)
	}
	_, err := f.execute(ctx, p)
	return err
}

// execute applies a plan to the kernel's table, and reports whether that changed anything. If it fails, nothing is
// changed.
func (f *family) execute(ctx context.Context, p *plan) (changed bool, err error) {
	first, second := p.transactions(f.key)
	for id, s := range p.base.sets {
		if setID(id).hasSlots() && p.base.slots[id]+len(p.sets[id].add) > int(s.Size) {
			return false, fmt.Errorf("%s: %w", s.Name, errFull)
		}
	}
	if err := rules.Apply(ctx, f.dataplane, first); err != nil {
		return false, err
	}
	f.table = p.base
	f.table.follow(p)
	f.state = known
	f.lowered.add(p)
	defer f.lowerTimeouts(ctx)
	if second.IsEmpty() {
		return !first.IsEmpty(), nil
	}
	if !first.IsEmpty() {
		letPacketsPass(ctx)
	}
	if err := rules.Apply(ctx, f.dataplane, second); err != nil {
		f.cannotRemove(ctx, err)
	} else {
		f.table.forget()
	}
	return true, nil
}

// cannotRemove records leftovers, which the next Sync removes. This is not a failure: all rules are right.
func (f *family) cannotRemove(ctx context.Context, err error) {
	f.state = leftovers
	if errors.Is(err, syscall.ENOENT) {
		f.state = unknown // a part of them was removed: find out what is left
	}
	if ctx.Err() != nil || errors.Is(err, dp.ErrStale) {
		return
	}
	f.metrics.cleanUpFailures.Inc()
	if f.leftover.Due(err.Error(), time.Now()) {
		klog.FromContext(ctx).Info("Obsolete objects cannot be removed yet", "table", f.key, "reason", err)
	}
}

// follow records what the first transaction of a plan has done and planning has not recorded. Objects that the second
// one is to remove count as leftovers.
func (t *table) follow(p *plan) {
	t.there, t.replace = true, false
	for _, id := range p.goneIDs {
		delete(t.ids, id)
	}
	t.leftovers = leftoverObjects{chains: p.goneChains, sets: p.goneSets}
	for id := range p.sets {
		t.slots[id] += len(p.sets[id].add)
		t.leftovers.elements[id] = p.sets[id].gone
	}
}

// forget records that the leftovers have been removed.
func (t *table) forget() {
	for id, elements := range t.leftovers.elements {
		t.slots[id] -= len(elements)
	}
	for _, name := range t.leftovers.chains {
		delete(t.chains, name)
	}
	for _, name := range t.leftovers.sets {
		delete(t.extraSets, name)
	}
	t.leftovers = leftoverObjects{}
}

// letPacketsPass waits for packets that were dispatched by rules the first transaction replaced, and have yet to look
// up what the second one removes. The kernel does not delay a transaction for them: without the pause one flow was lost
// in 900,000 waves of resizing, on a virtual machine whose processors do not always run (Linux 6.18). A Sync waits once
// in each family, however many services it resizes.
func letPacketsPass(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Millisecond):
	}
}

// cleanUp deletes the table, if there is one.
func (f *family) cleanUp(ctx context.Context) error {
	f.state = unknown
	return rules.DeleteTable(ctx, f.dataplane, f.key)
}

// describeService is DescribeService in one family.
func (f *family) describeService(_ model.ServiceName, _ *frontend.Changes, ports []*frontend.PortChange) string {
	if f.table == nil {
		return "" // nothing has been applied yet
	}
	// An empty table whose sets have the names of those in the kernel, so that everything is added. The ports are
	// planned together: otherwise chains that they share would be listed for each.
	base := newTable()
	base.there, base.sets, base.config = true, f.table.sets, f.table.config
	p := newPlan(base)
	p.shown = f.table.own
	for _, pc := range ports {
		p.changePort(pc)
	}
	first, _ := p.transactions(f.key)
	return first.Text()
}
