package frontend

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// mirror is a dataplane of one family: it follows what it is told, and notes where that does not fit what it has.
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
}

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
}

var errDataplane = errors.New("the dataplane is out of order")

func (m *mirror) apply(_ context.Context, c *Changes) error {
	m.calls++
	m.told, m.full, m.retry = nil, c.Full(), c.Retry()
	for p := range c.Ports() {
		m.told = append(m.told, p.port.name.String())
	}
	if m.fail != nil && !m.early {
		return m.fail
	}
	if c.Full() {
		m.reset()
	}
	m.follow(c)
	m.compareWithAll(c)
	if m.fail != nil {
		c.Accept()
	}
	return m.fail
}

func (m *mirror) follow(c *Changes) {
	tb := m.tb
	for p := range c.Ports() {
		for fr := range p.FrontendChanges() {
			if fr.Before != nil {
				assert.Equal(tb, held{p.Before.Name, *fr.Before}, m.frontends[fr.Before.Key])
				delete(m.frontends, fr.Before.Key)
			}
		}
	}
	for p := range c.Ports() {
		name := p.port.name
		before, had := m.ports[name]
		if require.Equal(tb, had, p.Before != nil, name); had {
			assert.Equal(tb, before.Port, *p.Before)
		}
		for fr := range p.FrontendChanges() {
			if fr.After != nil {
				assert.NotContains(tb, m.frontends, fr.After.Key)
				m.frontends[fr.After.Key] = held{name, *fr.After}
			}
		}
		for i, set := range sets() {
			if before.sets[i] == nil {
				before.sets[i] = map[int]*model.Endpoint{}
			}
			for _, e := range p.EndpointChanges(set) {
				if e.Before != nil {
					assert.True(tb, e.Before.Equal(before.sets[i][e.Slot]))
				} else {
					assert.NotContains(tb, before.sets[i], e.Slot)
				}
				if e.After != nil {
					before.sets[i][e.Slot] = e.After
				} else {
					delete(before.sets[i], e.Slot)
				}
			}
		}
		if p.After == nil {
			for i := range before.sets {
				assert.Empty(tb, before.sets[i])
			}
			delete(m.ports, name)
			continue
		}
		before.Port = *p.After
		m.ports[name] = before
	}
	m.followHealthChecks(c.HealthChecks())
	followAddrs(tb, m.hairpins, c.Hairpins())
	followAddrs(tb, m.cluster, c.ClusterIPs())
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
		n++
		names = append(names, p.After.Name.String())
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
					}), p.Has(other, ep.Target))
				}
			}
			assert.False(tb, p.Has(set, netip.AddrPort{}))
		}
		owned := 0
		for fr := range p.Frontends() {
			frontends[fr.Key] = held{p.After.Name, fr}
			owned++
		}
		assert.Equal(tb, p.After.NumFrontends(), owned)
		assert.Equal(tb, p.After, c.Port(p.After.Name).After)
	}
	assert.Len(tb, m.ports, n)
	assert.True(tb, slices.IsSorted(names))
	assert.Equal(tb, frontends, m.frontends)
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

// owner returns who has a key, "" for nobody.
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
	o.OnProblem = func(_ context.Context, p Problem) { r.problems = append(r.problems, p) }
	var err error
	r.Table, err = New(o)
	require.NoError(tb, err)
	r.SetNode(&model.Node{Name: "n1"})
	return r
}

// repair looks at both families, as Repair does, and applies what was not accepted yet.
func (r *rig) repair(tb testing.TB) {
	o := &RepairOptions{Look: func(ctx context.Context, c *Changes) (Look, error) {
		err := r.options.Apply(ctx, c)
		if assert.NoError(tb, err) {
			c.Accept()
		}
		return Look{}, err
	}}
	for _, f := range r.families {
		r.look(tb.Context(), &repairLoop{family: f}, o)
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

// quiet returns the test's context, without a logger: OnProblem tells what is reported.
func quiet(tb testing.TB) context.Context { return klog.NewContext(tb.Context(), logr.Discard()) }

// sets lists the backend sets in the order of setIndex.
func sets() [numSets]model.EndpointSets {
	return [numSets]model.EndpointSets{model.ClusterSet, model.LocalSet, Draining}
}
