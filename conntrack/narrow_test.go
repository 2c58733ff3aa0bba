package conntrack

import (
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// to and from are what narrow passes select.
func to(f model.Family, n int, port uint16) Selection {
	return Selection{Destination: netip.AddrPortFrom(host(f, n), port)}
}
func toPort(port uint16) Selection {
	return Selection{Destination: netip.AddrPortFrom(netip.Addr{}, port)}
}
func from(f model.Family, n int, port uint16) Selection {
	return Selection{ReplySource: netip.AddrPortFrom(host(f, n), port)}
}

func TestAPassAfterASmallChangeIsAboutThatAlone(t *testing.T) {
	f := model.IPv4
	one, two, three, four := endpoint{host: 1}, endpoint{host: 2}, endpoint{host: 3}, endpoint{host: 4}
	dns := spec{external: externalIP}
	const everything = "everything"
	for _, test := range []struct {
		name          string
		before, after []spec
		want          any
	}{
		{"an endpoint goes", []spec{dns.with(one, two)}, []spec{dns.with(one)}, []Selection{from(f, 2, 5353)}},
		{"an endpoint is replaced", []spec{dns.with(one, two)}, []spec{dns.with(one, three)},
			[]Selection{from(f, 2, 5353)}},
		{"an endpoint changes its port", []spec{dns.with(one)}, []spec{dns.with(endpoint{host: 1, port: 54})},
			[]Selection{from(f, 1, 5353)}},
		{"an endpoint comes", []spec{dns.with(one)}, []spec{dns.with(one, two)}, nil},
		{"the first endpoint comes", []spec{dns}, []spec{dns.with(one)},
			[]Selection{to(f, clusterIP, 53), to(f, externalIP, 53)}},
		{"the last endpoint goes", []spec{dns.with(one)}, []spec{dns}, []Selection{from(f, 1, 5353)}},
		{"a service comes", nil, []spec{{nodePort: 30053}}, []Selection{to(f, clusterIP, 53), toPort(30053)}},
		{"a service goes", []spec{dns.with(one)}, nil, []Selection{to(f, clusterIP, 53), to(f, externalIP, 53)}},
		{"an address comes and one goes", []spec{dns.with(one)}, []spec{spec{lb: loadBalancer}.with(one)},
			[]Selection{to(f, externalIP, 53), to(f, loadBalancer, 53)}},
		{"a node port comes", []spec{dns.with(one)}, []spec{spec{external: externalIP, nodePort: 30053}.with(one)},
			[]Selection{toPort(30053)}},
		{"an address goes while an endpoint goes", []spec{dns.with(one, two)}, []spec{spec{}.with(two)},
			[]Selection{to(f, externalIP, 53), from(f, 1, 5353)}},
		{"four endpoints go", []spec{dns.with(one, two, three, four)}, []spec{dns},
			[]Selection{from(f, 1, 5353), from(f, 2, 5353), from(f, 3, 5353), from(f, 4, 5353)}},
		{"five things change", []spec{dns.with(one, two, three, four)}, []spec{{}}, everything},
	} {
		t.Run(test.name, func(t *testing.T) {
			table := &fakeTable{}
			r := wrap(t, table, f)
			entries := func(specs []spec) (list []*sink.ServiceEntry) {
				for _, s := range specs {
					list = append(list, s.entry(t, f))
				}
				return list
			}
			sync := func(before, after []spec) {
				describe(r, entries(before), entries(after))
				require.NoError(t, r.Sync(t.Context()))
				r.Wait()
			}
			sync(nil, test.before)
			require.Equal(t, 1, table.passesOf(f))
			require.Empty(t, table.lastSelections(f), "first everything")
			sync(test.before, test.after)
			switch want := test.want.(type) {
			case string:
				require.Equal(t, 2, table.passesOf(f))
				require.Empty(t, table.lastSelections(f))
			case []Selection:
				require.Equal(t, 2, table.passesOf(f))
				require.ElementsMatch(t, want, table.lastSelections(f))
			case nil:
				require.Equal(t, 1, table.passesOf(f))
			}
		})
	}
}

func TestAPassLooksAtEverythingAfterFailuresAndResyncs(t *testing.T) {
	f := model.IPv4
	two := []*sink.ServiceEntry{all.with(endpoint{host: 1}, endpoint{host: 2}).entry(t, f)}
	one := []*sink.ServiceEntry{all.with(endpoint{host: 1}).entry(t, f)}
	failed := errors.New("on purpose")
	for name, test := range map[string]struct {
		before func(r *Reconciler, next *sink.Recorder, table *fakeTable)
		narrow bool
	}{
		"otherwise narrow": {before: func(*Reconciler, *sink.Recorder, *fakeTable) {}, narrow: true},
		"ForceResync":      {before: func(r *Reconciler, _ *sink.Recorder, _ *fakeTable) { r.ForceResync() }},
		"a Sync that failed": {before: func(r *Reconciler, next *sink.Recorder, _ *fakeTable) {
			next.FailNext(failed)
			require.ErrorIs(t, r.Sync(t.Context()), failed)
		}},
		"a Sync that failed for the family": {before: func(r *Reconciler, next *sink.Recorder, _ *fakeTable) {
			next.FailNext(&sink.FamilyError{Family: f, Err: failed})
			require.ErrorIs(t, r.Sync(t.Context()), failed)
		}},
		"a Sync that failed for the other family": {before: func(r *Reconciler, next *sink.Recorder, _ *fakeTable) {
			next.FailNext(&sink.FamilyError{Family: model.IPv6, Err: failed})
			require.ErrorIs(t, r.Sync(t.Context()), failed)
		}, narrow: true},
	} {
		t.Run(name, func(t *testing.T) {
			table, next := &fakeTable{}, &sink.Recorder{}
			r := Wrap(t.Context(), next, Options{Table: table, Families: []model.Family{f}, Addresses: nodePorts})
			r.SetNode(&model.Node{Name: "node-1"})
			describe(r, nil, two)
			require.NoError(t, r.Sync(t.Context()))
			r.Wait()
			test.before(r, next, table)
			describe(r, two, one)
			require.NoError(t, r.Sync(t.Context()))
			r.Wait()
			require.Equal(t, 2, table.passesOf(f))
			require.Equal(t, test.narrow, len(table.lastSelections(f)) > 0, "%v", table.lastSelections(f))

			// Afterwards passes are narrow again.
			describe(r, one, two)
			describe(r, two, one)
			require.NoError(t, r.Sync(t.Context()))
			r.Wait()
			require.Equal(t, 2, table.passesOf(f))
			describe(r, one, nil)
			describe(r, nil, []*sink.ServiceEntry{spec{}.with(endpoint{host: 1}).entry(t, f)})
			require.NoError(t, r.Sync(t.Context()))
			r.Wait()
			require.Len(t, table.lastSelections(f), 3, "two addresses and a node port")
		})
	}
}

// A flow to a node port's number elsewhere has nothing to do with this node.
func TestAFlowToTheNumberOfANodePortElsewherePassesBy(t *testing.T) {
	for _, f := range model.Families() {
		table := &fakeTable{}
		elsewhere := netip.MustParseAddrPort("8.8.8.8:30053")
		if f == model.IPv6 {
			elsewhere = netip.MustParseAddrPort("[2001:4860:4860::8888]:30053")
		}
		passes := flowTo(f, 4000, elsewhere, netip.AddrPort{})
		local := flowTo(f, 4001, netip.AddrPortFrom(host(f, nodeIP), 30053), netip.AddrPort{})
		stale := flowTo(f, 4002, netip.AddrPortFrom(host(f, otherIP), 30053), netip.AddrPortFrom(host(f, 9), 5353))
		table.Add(passes, local, stale)
		r := wrap(t, table, f)
		describe(r, nil, []*sink.ServiceEntry{all.with(endpoint{host: 1}).entry(t, f)})
		require.NoError(t, r.Sync(t.Context()))
		r.Wait()
		require.Equal(t, []Flow{passes}, table.Flows())
	}
}

// Whatever changes, a narrow pass leaves nothing behind that a full one would find.
func TestNarrowPassesFindWhatFullOnesWould(t *testing.T) {
	for seed := range int64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // there are pauses between passes
				f := model.Families()[seed%2]
				random := rand.New(rand.NewSource(seed))
				table := &fakeTable{}
				r := wrap(t, table, f)
				var before []*sink.ServiceEntry
				narrow := 0
				for step := range 30 {
					after := randomServices(t, random, f, before)
					describe(r, before, after)
					require.NoError(t, r.Sync(t.Context()))
					r.Wait()
					if len(table.lastSelections(f)) > 0 {
						narrow++
					}
					left := &fakeTable{}
					left.Add(table.Flows()...)
					deleted, err := deleteAll(t, left, f, before, after)
					require.NoError(t, err)
					require.Zero(t, deleted, "step %d", step)
					for i := range 10 {
						table.Add(randomFlow(random, f, after, uint16(10*step+i)))
					}
					before = after
				}
				require.NotZero(t, narrow)
			})
		})
	}
}

// deleteAll deletes the flows that are stale after one state followed another, with a pass over all of them.
func deleteAll(t *testing.T, table Table, f model.Family, before, after []*sink.ServiceEntry) (deleted int, err error) {
	x := newIndex()
	x.nodeAddresses = nodePorts().Of(f)
	for _, e := range before {
		x.set(e.Service.Name, udpServiceOf(e.Service, f), servingIn(e, f), &pending{})
	}
	for _, e := range before {
		x.set(e.Service.Name, &udpService{}, nil, &pending{})
	}
	for _, e := range after {
		x.set(e.Service.Name, udpServiceOf(e.Service, f), servingIn(e, f), &pending{})
	}
	return pass(t.Context(), table, f, nil, x.stale)
}

// servingIn returns a function that returns the serving endpoints of a port of an entry.
func servingIn(e *sink.ServiceEntry, family model.Family) func(model.PortName) targets {
	serving := map[model.PortName]targets{}
	for _, ep := range e.Endpoints {
		if ep.Port.Protocol == model.UDP && ep.Family() == family && serves(ep) {
			if serving[ep.Port] == nil {
				serving[ep.Port] = targets{}
			}
			serving[ep.Port][ep.Target] = struct{}{}
		}
	}
	return func(port model.PortName) targets { return serving[port] }
}

// randomServices changes one or two services of three that share addresses.
func randomServices(t *testing.T, random *rand.Rand, f model.Family, before []*sink.ServiceEntry) []*sink.ServiceEntry {
	after := slices.Clone(before)
	for range 1 + random.Intn(2) {
		s := spec{name: string(rune('a' + random.Intn(3)))}
		s.ip = clusterIP + int(s.name[0]-'a')
		if random.Intn(2) == 0 {
			s.external = nodeIP + 1 + random.Intn(2)
		}
		if random.Intn(2) == 0 {
			s.nodePort = uint16(30053 + random.Intn(2))
		}
		for i := range 4 {
			if random.Intn(3) > 0 {
				s.endpoints = append(s.endpoints, endpoint{host: i + 1, port: uint16(5353 + random.Intn(4)/3)})
			}
		}
		name := model.ServiceName{Namespace: "default", Name: s.name}
		i := slices.IndexFunc(after, func(e *sink.ServiceEntry) bool { return e.Service.Name == name })
		switch {
		case i < 0:
			after = append(after, s.entry(t, f))
		case random.Intn(5) == 0:
			after = slices.Delete(after, i, i+1)
		case random.Intn(2) == 0: // only endpoints change
			changed := s.entry(t, f)
			changed.Service = after[i].Service
			after[i] = changed
		default:
			after[i] = s.entry(t, f)
		}
	}
	return after
}

// randomFlow is a flow as the rules of some services make it.
func randomFlow(random *rand.Rand, f model.Family, services []*sink.ServiceEntry, client uint16) Flow {
	to := netip.AddrPortFrom(host(f, clusterIP+random.Intn(8)), []uint16{53, 30053, 30054}[random.Intn(3)])
	x := newIndex()
	for _, e := range services {
		x.set(e.Service.Name, udpServiceOf(e.Service, f), servingIn(e, f), &pending{})
	}
	var ports []*udpPort
	claimants := x.claimantsOf(to)
	claimants.any(func(p *udpPort) bool {
		ports = append(ports, p)
		return false
	})
	if local := to.Addr() == host(f, nodeIP); len(ports) == 0 && local {
		ports = slices.Collect(x.nodePorts[to.Port()].all())
	}
	byName := func(p, q *udpPort) int { return strings.Compare(p.name.String(), q.name.String()) }
	for _, p := range slices.SortedFunc(slices.Values(ports), byName) {
		if len(p.serving) > 0 {
			serving := slices.SortedFunc(maps.Keys(p.serving), model.CompareTargets)
			return flowTo(f, client, to, serving[random.Intn(len(serving))])
		}
	}
	if len(ports) > 0 { // it would be rejected
		to = netip.AddrPortFrom(host(f, 99), 53)
	}
	return flowTo(f, client, to, netip.AddrPort{})
}
