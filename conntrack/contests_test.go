package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// newFrontends returns a table of frontends, as all backends here have it, on a node with the addresses of nodePorts.
func newFrontends(t *testing.T, apply func(context.Context, *frontend.Changes) error) *frontend.Table {
	if apply == nil {
		apply = func(context.Context, *frontend.Changes) error { return nil }
	}
	table, err := frontend.New(frontend.Options{Apply: apply,
		NodePortAddresses: func(_ *model.Node, f model.Family) []netip.Addr { return []netip.Addr{host(f, nodeIP)} }})
	require.NoError(t, err)
	return table
}

// Two services list an address, and it passes from one to the other while both do (S59). What the first one's client
// sends there does not go on to its endpoint, nor does a flow of before the proxy's start to the one that lost.
func testContests(t *testing.T, newTable func(t *testing.T) testTable) {
	listed := spec{name: "a", ip: 110, external: externalIP, created: 2001}.with(endpoint{host: 1})
	other := spec{name: "b", ip: 111, external: externalIP, created: 2002}.with(endpoint{host: 2})
	again := listed
	again.created = 2003
	hasCluster := spec{name: "b", ip: externalIP, created: 2002}.with(endpoint{host: 2})
	atNode := spec{name: "a", ip: 110, external: nodeIP, port: 30053, created: 2001}.with(endpoint{host: 1})
	atNodeAgain := atNode
	atNodeAgain.created = 2003
	nodePort := spec{name: "b", ip: 111, nodePort: 30053, created: 2002}.with(endpoint{host: 2})
	sameNodePort := spec{name: "a", ip: 110, nodePort: 30053, created: 2001}.with(endpoint{host: 1})
	sameNodePortAgain := sameNodePort
	sameNodePortAgain.created = 2003

	for name, c := range map[string]struct {
		before, after []spec
		to            int
		port          uint16
		kept          int // the flow to the endpoint on this host
	}{
		"the owner is deleted and created again": {before: []spec{listed, other}, after: []spec{again, other},
			to: externalIP, port: 53, kept: 2},
		"it becomes another service's cluster IP": {before: []spec{listed}, after: []spec{listed, hasCluster},
			to: externalIP, port: 53, kept: 2},
		"the owner is deleted": {before: []spec{listed, other}, after: []spec{other}, to: externalIP, port: 53, kept: 2},
		"the one that waits is deleted": {before: []spec{listed, other}, after: []spec{listed},
			to: externalIP, port: 53, kept: 1},
		"another one comes": {before: []spec{listed}, after: []spec{listed, other},
			to: externalIP, port: 53, kept: 1},
		"both are there from the start": {after: []spec{listed, other}, to: externalIP, port: 53, kept: 1},
		"an address of the node passes to the node port of that number": {before: []spec{atNode, nodePort},
			after: []spec{atNodeAgain, nodePort}, to: nodeIP, port: 30053, kept: 2},
		"a node port": {before: []spec{sameNodePort, nodePort}, after: []spec{sameNodePortAgain, nodePort},
			to: nodeIP, port: 30053, kept: 2},
	} {
		for _, f := range model.Families() {
			t.Run(name+"/"+f.String(), func(t *testing.T) {
				table := newTable(t)
				r := Wrap(t.Context(), newFrontends(t, nil), Options{Table: table, Addresses: nodePorts})
				sync := func(before, after []spec) {
					entries := func(specs []spec) (list []*sink.ServiceEntry) {
						for _, s := range specs {
							list = append(list, s.entry(t, f))
						}
						return list
					}
					describe(r, entries(before), entries(after))
					require.NoError(t, r.Sync(t.Context()))
					r.Wait()
				}
				if c.before != nil {
					sync(nil, c.before)
				}
				to := netip.AddrPortFrom(host(f, c.to), c.port)
				target := func(n int) netip.AddrPort { return netip.AddrPortFrom(host(f, n), 5353) }
				ofNeither := flowTo(f, 4003, netip.AddrPortFrom(host(f, otherIP), 53), target(1))
				table.Add(flowTo(f, 4001, to, target(1)), flowTo(f, 4002, to, target(2)), ofNeither)
				sync(c.before, c.after)
				require.ElementsMatch(t, []Flow{flowTo(f, uint16(4000+c.kept), to, target(c.kept)), ofNeither},
					table.Flows())
			})
		}
	}
}

func TestFlowsToTheFormerOwnerOfAnAddressAreDeleted(t *testing.T) {
	testContests(t, func(*testing.T) testTable { return &fakeTable{} })
}

// While a family fails, its rules are those of the former owner.
func TestAnOwnerCountsOnceItsFamilyIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // there are pauses between passes
		var failure error
		table := &fakeTable{}
		r := Wrap(t.Context(), newFrontends(t, func(context.Context, *frontend.Changes) error { return failure }),
			Options{Table: table, Families: []model.Family{model.IPv4}, Addresses: nodePorts})
		listed := spec{name: "a", ip: 110, external: externalIP, created: 2001}.with(endpoint{host: 1})
		other := spec{name: "b", ip: 111, external: externalIP, created: 2002}.with(endpoint{host: 2})
		again := listed
		again.created = 2003
		entries := func(s spec) []*sink.ServiceEntry {
			return []*sink.ServiceEntry{s.entry(t, model.IPv4), other.entry(t, model.IPv4)}
		}
		describe(r, nil, entries(listed))
		require.NoError(t, r.Sync(t.Context()))
		r.Wait()
		flow := flowTo(model.IPv4, 4000, netip.AddrPortFrom(host(model.IPv4, externalIP), 53),
			netip.AddrPortFrom(host(model.IPv4, 1), 5353))
		table.Add(flow)
		failure = errors.New("no memory")
		describe(r, entries(listed), entries(again))
		require.Error(t, r.Sync(t.Context()))
		r.CheckAll(model.IPv4)
		r.Wait()
		require.Equal(t, []Flow{flow}, table.Flows())
		failure = nil
		require.NoError(t, r.Sync(t.Context()))
		r.Wait()
		require.Empty(t, table.Flows())
		require.Empty(t, r.families[0].contests)
	})
}

// What is no longer contested leaves nothing behind.
func TestContestsThatEndAreForgotten(t *testing.T) {
	r := Wrap(t.Context(), newFrontends(t, nil), Options{Table: &fakeTable{}, Addresses: nodePorts})
	var state []*sink.ServiceEntry
	for i, name := range []string{"a", "b", "c"} {
		state = append(state, spec{name: name, ip: 110 + i, external: externalIP, nodePort: 30053}.entry(t, model.IPv4))
	}
	describe(r, nil, state)
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
	require.Len(t, r.families[0].index.owners, 2)
	describe(r, state, state[2:])
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
	require.Empty(t, r.families[0].index.owners)
	describe(r, state[2:], nil)
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
	require.Empty(t, r.families[0].index.owners)
}

// A contest that begins and ends while the family fails leaves nothing behind.
func TestContestsOfAFamilyThatFailsAreForgotten(t *testing.T) {
	var failure error
	r := Wrap(t.Context(), newFrontends(t, func(context.Context, *frontend.Changes) error { return failure }),
		Options{Table: &fakeTable{}, Addresses: nodePorts})
	require.NoError(t, r.Sync(t.Context()))
	failure = errors.New("no memory")
	for i := range 3 {
		both := []*sink.ServiceEntry{spec{name: "a", ip: 110, external: 120 + i}.entry(t, model.IPv4),
			spec{name: "b", ip: 111, external: 120 + i}.entry(t, model.IPv4)}
		describe(r, nil, both)
		require.Error(t, r.Sync(t.Context()))
		require.Len(t, r.families[0].contests, 1)
		describe(r, both, nil)
		require.Error(t, r.Sync(t.Context()))
		require.Empty(t, r.families[0].contests)
	}
	r.Wait()
}

// A node port owns an address of the node that another service lists. When the node loses the address, the other one
// has it, although nothing about the two services has changed.
func TestFlowsToTheFormerOwnerOfAnAddressThatTheNodeLosesAreDeleted(t *testing.T) {
	for _, f := range model.Families() {
		t.Run(f.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // there are pauses between passes
				served := []netip.Addr{host(f, nodeIP), host(f, externalIP)}
				backend, err := frontend.New(frontend.Options{
					Apply: func(context.Context, *frontend.Changes) error { return nil },
					NodePortAddresses: func(_ *model.Node, of model.Family) (list []netip.Addr) {
						if of == f {
							list = served
						}
						return list
					}})
				require.NoError(t, err)
				table := &fakeTable{}
				r := Wrap(t.Context(), backend, Options{Table: table,
					Addresses: func() nodeaddr.Addresses { return nodeaddr.Addresses{IPs: served} }})
				describe(r, nil, []*sink.ServiceEntry{
					spec{name: "a", ip: 110, external: externalIP, port: 30053, created: 2002}.with(endpoint{host: 1}).entry(t, f),
					spec{name: "b", ip: 111, nodePort: 30053, created: 2001}.with(endpoint{host: 2}).entry(t, f)})
				require.NoError(t, r.Sync(t.Context()))
				r.Wait()
				to := netip.AddrPortFrom(host(f, externalIP), 30053)
				ofNodePort := flowTo(f, 4002, to, netip.AddrPortFrom(host(f, 2), 5353))
				table.Add(ofNodePort)
				r.CheckAll(f)
				r.Wait()
				require.Equal(t, []Flow{ofNodePort}, table.Flows(), "it owns the address")
				ofExternalIP := flowTo(f, 4001, to, netip.AddrPortFrom(host(f, 1), 5353))
				table.Add(ofExternalIP)
				served = served[:1]
				require.NoError(t, r.Sync(t.Context()))
				r.Wait()
				require.Equal(t, []Flow{ofExternalIP}, table.Flows())
			})
		})
	}
}
