package frontend

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// mirror is a dataplane of one family: it applies the reported changes, and records those that do not fit what it has.
type mirror struct {
	tb        testing.TB
	frontends map[Key]held
	ports     map[model.PortName]heldPort
	hairpins  map[string]bool
	cluster   map[string]bool
	health    map[HealthCheck]bool

	told  []string // ports that the last call was about
	full  bool
	retry bool
	calls int
	fail  error
	// early accepts before it fails.
	early bool

	// refuse, if given, says what becomes of a port that is delivered; refused are the ports that are not served, with
	// what became of them.
	refuse  func(*PortChange) outcome
	refused map[model.PortName]outcome
	// returns: ports that keep what they had are refused by the error that is returned.
	returns bool
}

// outcome is what becomes of a port.
type outcome int

const (
	taken    outcome = iota
	kept             // refused, and the mirror has what it had
	dropped          // refused, and it has nothing
	recorded         // refused, although it has it all
)

type held struct {
	owner model.PortName
	Frontend
}

type heldPort struct {
	Port
	sets [numSets]map[int]*model.Endpoint
}

func newMirror(tb testing.TB) *mirror {
	m := &mirror{tb: tb}
	m.reset()
	return m
}

func (m *mirror) reset() {
	m.frontends, m.ports = map[Key]held{}, map[model.PortName]heldPort{}
	m.hairpins, m.cluster, m.health = map[string]bool{}, map[string]bool{}, map[HealthCheck]bool{}
	m.refused = map[model.PortName]outcome{}
}

var errDataplane = errors.New("the dataplane is out of order")

func (m *mirror) apply(_ context.Context, c *Changes) error {
	m.calls++
	m.told, m.full, m.retry = nil, c.Full(), c.Retry()
	for p := range c.Ports() {
		m.told = append(m.told, p.port.name.String())
	}
	for name, as := range m.refused {
		if c.Retry() && (as != dropped || c.Port(name) != nil) && !c.Full() {
			assert.Contains(m.tb, m.told, name.String(), "a retry delivers what was refused")
		}
	}
	outcomes, err := m.decide(c)
	if m.fail != nil && !m.early {
		return m.fail
	}
	if c.Full() {
		m.reset()
	}
	m.follow(c, outcomes)
	m.compareWithAll(c)
	m.changeMind(c)
	if m.fail != nil {
		c.Accept()
		return m.fail
	}
	return err
}

// decide refuses ports, and returns what becomes of those that are delivered.
func (m *mirror) decide(c *Changes) (outcomes map[model.PortName]outcome, err error) {
	outcomes = map[model.PortName]outcome{}
	var errs []error
	for p := range c.Ports() {
		if m.refuse == nil {
			continue
		}
		as := m.refuse(p)
		switch {
		case as == kept && m.returns && m.fail == nil:
			errs = append(errs, &sink.PortError{Port: p.Name(), Family: c.Family(), Err: errDataplane})
		case as == kept:
			p.Refuse(p.Before, errDataplane)
		case as == dropped:
			p.Refuse(nil, errDataplane)
		case as == recorded:
			p.Refuse(p.After, errDataplane)
		}
		switch {
		case as == kept && p.Before == nil || as == recorded && p.After == nil:
			as = dropped
		case as == kept && p.Before == p.After:
			as = recorded
		}
		outcomes[p.Name()] = as
	}
	return outcomes, errors.Join(errs...)
}

func (m *mirror) follow(c *Changes, outcomes map[model.PortName]outcome) {
	tb := m.tb
	for p := range c.Ports() {
		m.checkBefore(p)
	}
	for p := range c.Ports() {
		switch outcomes[p.Name()] {
		case kept:
		case dropped:
			m.drop(p.Name())
		default:
			for fr := range p.FrontendChanges() {
				if fr.Before != nil {
					delete(m.frontends, fr.Before.Key)
				}
			}
		}
	}
	for p := range c.Ports() {
		delete(m.refused, p.Name())
		if as := outcomes[p.Name()]; as == kept || as != taken && p.After != nil {
			m.refused[p.Name()] = as
		}
	}
	for p := range c.Ports() {
		if as := outcomes[p.Name()]; as == taken || as == recorded {
			m.take(p)
		}
	}
	for name, as := range m.refused {
		if as == dropped && c.Port(name) == nil {
			delete(m.refused, name)
		}
	}
	m.followHealthChecks(c.HealthChecks())
	followAddrs(tb, m.hairpins, c.Hairpins())
	followAddrs(tb, m.cluster, c.ClusterIPs())
}

// changeMind takes some of the ports that were refused before, and refuses some that were not, although this call
// delivers none of them.
func (m *mirror) changeMind(c *Changes) {
	for _, s := range slices.SortedFunc(maps.Values(c.table.services), func(a, b *service) int {
		return a.name.Compare(b.name)
	}) {
		for _, p := range s.ports.all {
			if p.family != c.family {
				continue
			}
			change := c.Port(p.name)
			if m.refuse == nil || change == nil || slices.Contains(m.told, p.name.String()) || m.refuse(change) != dropped {
				continue
			}
			m.drop(p.name)
			if m.refused[p.name] == taken {
				change.Refuse(nil, errDataplane)
				m.refused[p.name] = dropped
			} else {
				change.Accept()
				delete(m.refused, p.name)
				m.take(change)
			}
		}
	}
}

// checkBefore checks that what a change says of the port before it is what the mirror has.
func (m *mirror) checkBefore(p *PortChange) {
	before, had := m.ports[p.Name()]
	if require.Equal(m.tb, had, p.Before != nil, p.Name()); had {
		assert.Equal(m.tb, before.Port, *p.Before)
	}
	for fr := range p.FrontendChanges() {
		if fr.Before != nil {
			assert.Equal(m.tb, held{p.Before.Name, *fr.Before}, m.frontends[fr.Before.Key])
		}
	}
	for i, set := range sets() {
		for _, e := range p.EndpointChanges(set) {
			if e.Before != nil {
				assert.True(m.tb, e.Before.Equal(before.sets[i][e.Slot]))
			} else {
				assert.NotContains(m.tb, before.sets[i], e.Slot)
			}
		}
	}
}

// take follows a change, after the frontends that ports have lost are gone.
func (m *mirror) take(p *PortChange) {
	name := p.Name()
	for fr := range p.FrontendChanges() {
		if fr.After == nil {
			continue
		}
		if h, there := m.frontends[fr.After.Key]; there { // of one that is refused, and keeps what it had
			assert.Equal(m.tb, kept, m.refused[h.owner])
			loser := m.ports[h.owner]
			loser.frontends[h.Kind]--
			m.ports[h.owner] = loser
		}
		m.frontends[fr.After.Key] = held{name, *fr.After}
	}
	port := m.ports[name]
	for i, set := range sets() {
		if port.sets[i] == nil {
			port.sets[i] = map[int]*model.Endpoint{}
		}
		for _, e := range p.EndpointChanges(set) {
			if e.After != nil {
				port.sets[i][e.Slot] = e.After
			} else {
				delete(port.sets[i], e.Slot)
			}
		}
	}
	if p.After == nil {
		for i := range port.sets {
			assert.Empty(m.tb, port.sets[i])
		}
		delete(m.ports, name)
		return
	}
	port.Port = *p.After
	m.ports[name] = port
}

// drop removes all that the mirror has of a port.
func (m *mirror) drop(name model.PortName) {
	maps.DeleteFunc(m.frontends, func(_ Key, h held) bool { return h.owner == name })
	delete(m.ports, name)
}

// isRefused reports whether what the mirror has of a port is not what is described.
func (m *mirror) isRefused(name model.PortName) bool {
	return m.refused[name] == kept || m.refused[name] == dropped
}

// others are the frontends of ports that are not refused.
func (m *mirror) others() map[Key]held {
	others := maps.Clone(m.frontends)
	maps.DeleteFunc(others, func(_ Key, h held) bool { return m.isRefused(h.owner) })
	return others
}

func followAddrs(tb testing.TB, set map[string]bool, d Diff[netip.Addr]) {
	for _, a := range d.Removed {
		assert.True(tb, set[a.String()])
		delete(set, a.String())
	}
	for _, a := range d.Added {
		assert.False(tb, set[a.String()])
		set[a.String()] = true
	}
}

func (m *mirror) followHealthChecks(d Diff[HealthCheck]) {
	for _, h := range d.Removed {
		assert.True(m.tb, m.health[h])
		delete(m.health, h)
	}
	for _, h := range d.Added {
		assert.False(m.tb, m.health[h])
		m.health[h] = true
	}
}

// compareWithAll compares what the mirror has with the whole table.
func (m *mirror) compareWithAll(c *Changes) {
	tb := m.tb
	n, names, frontends := 0, []string(nil), map[Key]held{}
	for p := range c.All().Ports() {
		names = append(names, p.After.Name.String())
		if m.isRefused(p.Name()) {
			assert.Contains(tb, m.told, p.Name().String(), "it is delivered by no other call")
			continue
		}
		n++
		have := m.ports[p.After.Name]
		assert.Equal(tb, have.Port, *p.After)
		for i, set := range sets() {
			list := p.Endpoints(set)
			assert.Len(tb, have.sets[i], len(list))
			assert.Equal(tb, p.After.Size(set), len(list))
			for slot, ep := range list {
				assert.True(tb, ep.Equal(have.sets[i][slot]))
				for _, other := range sets() {
					assert.Equal(tb, slices.ContainsFunc(p.Endpoints(other), func(o *model.Endpoint) bool {
						return o.Target == ep.Target
					}), p.Sets(ep.Target).Has(other))
				}
			}
			assert.False(tb, p.Sets(netip.AddrPort{}).Has(set))
		}
		owned := 0
		for fr := range p.Frontends() {
			frontends[fr.Key] = held{p.After.Name, fr}
			owned++
		}
		assert.Equal(tb, p.After.NumFrontends(), owned)
		assert.Equal(tb, p.After, c.Port(p.After.Name).After)
	}
	for name := range m.ports {
		if m.isRefused(name) {
			n++
		}
	}
	assert.Len(tb, m.ports, n)
	assert.True(tb, slices.IsSorted(names))
	assert.Equal(tb, frontends, m.others())
	assert.ElementsMatch(tb, slices.Collect(maps.Keys(m.hairpins)), texts(c.All().Hairpins().Added))
	assert.ElementsMatch(tb, slices.Collect(maps.Keys(m.cluster)), texts(c.All().ClusterIPs().Added))
	assert.ElementsMatch(tb, slices.Collect(maps.Keys(m.health)), c.All().HealthChecks().Added)
}

func texts[T interface{ String() string }](list []T) []string {
	t := make([]string, 0, len(list))
	for _, x := range list {
		t = append(t, x.String())
	}
	return t
}

// owner returns the owner of a key, "" if it has none.
func (m *mirror) owner(key string) string {
	for k, h := range m.frontends {
		if k.String() == key {
			return h.owner.Service.String()
		}
	}
	return ""
}

// rig is a table with a mirror for each family.
type rig struct {
	*Table
	v4, v6   *mirror
	problems []Problem
	// nodeAddrs serve node ports.
	nodeAddrs []netip.Addr
}

func newRig(tb testing.TB) *rig {
	r := &rig{v4: newMirror(tb), v6: newMirror(tb)}
	var o Options
	o.Apply = func(ctx context.Context, c *Changes) error {
		if c.Family() == model.IPv6 {
			return r.v6.apply(ctx, c)
		}
		return r.v4.apply(ctx, c)
	}
	o.NodePortAddresses = func(_ *model.Node, f model.Family) (list []netip.Addr) {
		for _, a := range r.nodeAddrs {
			if model.FamilyOf(a) == f {
				list = append(list, a)
			}
		}
		return list
	}
	o.OnProblem = func(_ context.Context, p Problem) { r.problems = append(r.problems, p) }
	var err error
	r.Table, err = New(o)
	require.NoError(tb, err)
	r.SetNode(&model.Node{Name: "n1"})
	return r
}

// repair checks both families, as Repair does, and applies what was not accepted yet.
func (r *rig) repair(tb testing.TB) {
	check := func(ctx context.Context, c *Changes) (CheckResult, error) {
		err := r.options.Apply(ctx, c)
		if assert.NoError(tb, err) {
			c.Accept()
		}
		return CheckResult{}, err
	}
	for _, f := range r.families {
		r.check(tb.Context(), &repairLoop{family: f}, check)
	}
}

func (r *rig) set(objects ...any) {
	for _, o := range objects {
		switch o := o.(type) {
		case *model.Service:
			r.SetService(o)
		case *model.Endpoint:
			r.SetEndpoint(o)
		case *model.Node:
			r.SetNode(o)
		}
	}
}

func (r *rig) sync(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, r.Sync(quiet(tb)))
}

// exceed applies what exceeds limits, and returns the errors of service ports.
func (r *rig) exceed(tb testing.TB) (list []string) {
	tb.Helper()
	err := r.Sync(quiet(tb))
	require.Zero(tb, sink.FailedFamilies(err))
	for _, e := range sink.PortErrors(err) {
		list = append(list, fmt.Sprintf("%v %v: %v", e.Family, e.Port, e.Err))
	}
	return list
}

// quiet returns the test's context, without a logger: OnProblem tells what is reported.
func quiet(tb testing.TB) context.Context { return klog.NewContext(tb.Context(), logr.Discard()) }

// sets lists the backend sets in the order of setIndex.
func sets() [numSets]model.EndpointSets {
	return [numSets]model.EndpointSets{model.ClusterSet, model.LocalSet, Draining}
}
