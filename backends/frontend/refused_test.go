package frontend_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// groups is a dataplane as OVS is one: it has a group of endpoints for each service port, and refuses some. Its backend
// has no memory of its own.
type groups struct {
	t       *testing.T
	buckets map[model.PortName]map[int]netip.AddrPort
	refuse  map[model.PortName]bool
	loses   bool // what it refuses it removes
	inDoubt bool // what it refuses may not be at fault
	puts    []string
}

func (g *groups) apply(_ context.Context, c *frontend.Changes) error {
	g.puts = nil
	for p := range c.Ports() {
		if err := g.put(p); err != nil {
			has := p.Before
			if g.loses {
				delete(g.buckets, p.Name())
				has = nil
			}
			if g.inDoubt {
				p.RefuseInDoubt(has, err)
			} else {
				p.Refuse(has, err)
			}
		}
	}
	return nil
}

// put applies a change to what the dataplane has, as the change says.
func (g *groups) put(p *frontend.PortChange) error {
	name := p.Name()
	g.puts = append(g.puts, name.Port)
	require.Equal(g.t, p.Before != nil, g.buckets[name] != nil, "Before is what the dataplane has of %v", name)
	if p.Before != nil {
		require.Len(g.t, g.buckets[name], p.Before.Size(model.ClusterSet))
	}
	for _, e := range p.EndpointChanges(model.ClusterSet) {
		if e.Before != nil {
			require.Equal(g.t, e.Before.Target, g.buckets[name][e.Slot])
		}
	}
	if g.refuse[name] {
		return errors.New("OFPGMFC_OUT_OF_BUCKETS")
	}
	if p.After == nil {
		delete(g.buckets, name)
		return nil
	}
	if p.Before == nil {
		g.buckets[name] = map[int]netip.AddrPort{}
	}
	for _, e := range p.EndpointChanges(model.ClusterSet) {
		if e.After != nil {
			g.buckets[name][e.Slot] = e.After.Target
		} else {
			delete(g.buckets[name], e.Slot)
		}
	}
	return nil
}

// refusing returns a table and its dataplane, which has three ports with an endpoint each.
func refusing(t *testing.T) (*frontend.Table, *groups, *model.Service) {
	g := &groups{t: t, buckets: map[model.PortName]map[int]netip.AddrPort{}, refuse: map[model.PortName]bool{}}
	table, err := frontend.New(frontend.Options{Families: []model.Family{model.IPv4}, Apply: g.apply})
	require.NoError(t, err)
	s := fm.Service("default/web").ClusterIP("10.96.0.1").Port("a", 1).Port("b", 2).Port("c", 3).Build()
	table.SetService(s)
	g.set(table, s, 1)
	require.NoError(t, table.Sync(t.Context()))
	require.Len(t, g.buckets, 3)
	return table, g, s
}

// set adds an endpoint to each port.
func (g *groups) set(table *frontend.Table, s *model.Service, n int) {
	for _, p := range s.Ports {
		table.SetEndpoint(fm.Endpoint(s.PortName(p).String(), fmt.Sprintf("10.1.0.%d:80", n)).Build())
	}
}

func TestARefusedPortIsDeliveredAgainWithWhatTheDataplaneHas(t *testing.T) {
	for _, loses := range []bool{false, true} {
		t.Run(fmt.Sprintf("that it loses: %v", loses), func(t *testing.T) {
			table, g, s := refusing(t)
			g.loses = loses
			b := s.PortName(s.Ports[1])
			g.refuse[b] = true
			g.set(table, s, 2)
			err := table.Sync(t.Context())
			assert.Zero(t, sink.FailedFamilies(err))
			ports := sink.PortErrors(err)
			require.Len(t, ports, 1)
			assert.Equal(t, b, ports[0].Port)
			assert.Len(t, g.buckets[s.PortName(s.Ports[0])], 2, "the other ports are applied")
			assert.Len(t, g.buckets[s.PortName(s.Ports[2])], 2)

			require.Equal(t, ports, sink.PortErrors(table.Sync(t.Context())), "the error remains")
			assert.Empty(t, g.puts, "and nothing is tried")
			table.SetEndpoint(fm.Endpoint(s.PortName(s.Ports[0]).String(), "10.1.0.3:80").Build())
			require.Equal(t, ports, sink.PortErrors(table.Sync(t.Context())))
			assert.Equal(t, []string{"a"}, g.puts, "others are not held up")

			g.set(table, s, 4)
			table.DeleteEndpoint(fm.Endpoint(b.String(), "10.1.0.1:80").Build().Key())
			require.Equal(t, ports, sink.PortErrors(table.Sync(t.Context())))
			assert.Equal(t, []string{"a", "b", "c"}, g.puts, "it is tried when it changes")

			table.ResyncFailed()
			require.Equal(t, ports, sink.PortErrors(table.Sync(t.Context())))
			assert.Equal(t, []string{"b"}, g.puts, "and at a retry, alone")
			g.refuse[b] = false
			table.ResyncFailed()
			require.NoError(t, table.Sync(t.Context()))
			assert.ElementsMatch(t, []string{"10.1.0.2:80", "10.1.0.4:80"}, texts(g.buckets[b]))
			table.ResyncFailed()
			require.NoError(t, table.Sync(t.Context()))
			assert.Empty(t, g.puts)
		})
	}
}

// A port that may not be at fault is tried in every Sync that has something to apply, until it is accepted or its fault
// is certain.
func TestAPortInDoubtIsDeliveredInEveryCall(t *testing.T) {
	table, g, s := refusing(t)
	a, b := s.PortName(s.Ports[0]), s.PortName(s.Ports[1])
	next := 1
	changeA := func() []string {
		next++
		table.SetEndpoint(fm.Endpoint(a.String(), fmt.Sprintf("10.1.0.%d:80", next)).Build())
		_ = table.Sync(t.Context())
		return g.puts
	}
	g.refuse[b], g.inDoubt = true, true
	table.SetEndpoint(fm.Endpoint(b.String(), "10.1.0.9:80").Build())
	require.Len(t, sink.PortErrors(table.Sync(t.Context())), 1)
	for range 2 {
		assert.Equal(t, []string{"a", "b"}, changeA())
	}
	g.inDoubt = false
	assert.Equal(t, []string{"a", "b"}, changeA())
	assert.Equal(t, []string{"a"}, changeA(), "its fault is certain")
	g.refuse[b] = false
	table.ResyncFailed()
	require.NoError(t, table.Sync(t.Context()))
	assert.Equal(t, []string{"a"}, changeA())
}

func texts(buckets map[int]netip.AddrPort) (list []string) {
	for _, a := range buckets {
		list = append(list, a.String())
	}
	return list
}

func TestARefusedPortThatGoesIsForgottenOnceTheDataplaneIsRidOfIt(t *testing.T) {
	table, g, s := refusing(t)
	b := s.PortName(s.Ports[1])
	g.refuse[b] = true
	table.DeleteService(s.Name)
	require.Len(t, sink.PortErrors(table.Sync(t.Context())), 1)
	require.Len(t, sink.PortErrors(table.Sync(t.Context())), 1)
	assert.Len(t, g.buckets, 1)
	g.refuse[b] = false
	table.ResyncFailed()
	require.NoError(t, table.Sync(t.Context()))
	assert.Empty(t, g.buckets)

	g.refuse[b], g.loses = true, true
	table.SetService(s)
	require.Len(t, sink.PortErrors(table.Sync(t.Context())), 1)
	table.DeleteService(s.Name)
	require.NoError(t, table.Sync(t.Context()), "there is nothing to remove")
}

// Returning the error is enough where the dataplane keeps what it had.
func TestAReturnedPortErrorRefusesThePort(t *testing.T) {
	g := &groups{t: t, buckets: map[model.PortName]map[int]netip.AddrPort{}, refuse: map[model.PortName]bool{}}
	gone := fm.Service("default/gone").Port("x", 1).Build()
	table, err := frontend.New(frontend.Options{Families: []model.Family{model.IPv4},
		Apply: func(_ context.Context, c *frontend.Changes) error {
			var errs []error
			for p := range c.Ports() {
				if err := g.put(p); err != nil {
					errs = append(errs, &sink.PortError{Port: p.Name(), Family: c.Family(), Err: err},
						&sink.PortError{Port: gone.PortName(gone.Ports[0]), Family: c.Family(), Err: err})
				}
			}
			return errors.Join(errs...)
		}})
	require.NoError(t, err)
	s := fm.Service("default/web").ClusterIP("10.96.0.1").Port("a", 1).Port("b", 2).Build()
	table.SetService(s)
	require.NoError(t, table.Sync(t.Context()))
	b := s.PortName(s.Ports[1])
	g.refuse[b] = true
	g.set(table, s, 1)
	require.Len(t, sink.PortErrors(table.Sync(t.Context())), 2, "one of them names no port that there is")
	require.Len(t, sink.PortErrors(table.Sync(t.Context())), 1)
	g.refuse[b] = false
	table.ResyncFailed()
	require.NoError(t, table.Sync(t.Context()))
	assert.Len(t, g.buckets[b], 1)
}

// A Sync in which nothing new is refused returns the same error as the one before, so callers can compare it at no
// cost.
func TestAnErrorThatStaysIsTheSameOne(t *testing.T) {
	refuse := true
	table, err := frontend.New(frontend.Options{Apply: func(_ context.Context, c *frontend.Changes) error {
		for p := range c.Ports() {
			if refuse {
				p.Refuse(nil, errors.New("no space"))
			}
		}
		return nil
	}})
	require.NoError(t, err)
	service := func(n int) *model.Service {
		return fm.Service(fmt.Sprint("shop/web-", n)).ClusterIP(fmt.Sprint("10.96.0.", 1+n)).Port("http", 80).Build()
	}
	table.SetService(service(0))
	first := table.Sync(t.Context())
	require.Len(t, sink.PortErrors(first), 1)
	require.Same(t, first, table.Sync(t.Context()))

	table.SetService(service(1))
	second := table.Sync(t.Context())
	require.Len(t, sink.PortErrors(second), 2)
	require.Same(t, second, table.Sync(t.Context()))

	refuse = false
	table.SetService(service(2))
	require.Same(t, second, table.Sync(t.Context()), "another service is accepted")
	table.ResyncFailed()
	require.NoError(t, table.Sync(t.Context()))
}
