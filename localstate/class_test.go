package localstate

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// silent is a context without logs: random objects cause many log lines.
func silent(t *testing.T) context.Context { return klog.NewContext(t.Context(), logr.Discard()) }

// fleet computes the state of several nodes through their classes.
type fleet struct {
	t        *testing.T
	base     *State
	classes  map[Class]*State
	shared   map[Class]*mirror
	trackers map[string]*NodeTracker
	// parts are those of the classes, kept up to date with ChangedParts; some counts calls that did not return all.
	parts map[Class]map[model.ServiceName]map[string]*NodePart
	some  int
	// named are the zones that hints name, and unnamed counts the states of nodes in other zones.
	named   map[string]bool
	unnamed int
}

func newFleet(t *testing.T, opts options, nodes ...string) *fleet {
	f := &fleet{t: t, classes: map[Class]*State{}, shared: map[Class]*mirror{}, trackers: map[string]*NodeTracker{},
		parts: map[Class]map[model.ServiceName]map[string]*NodePart{}, named: map[string]bool{}}
	for _, node := range nodes {
		opts.NodeName = node
		tracker, err := NewNodeTracker(silent(t), opts.Options)
		require.NoError(t, err)
		f.trackers[node] = tracker
	}
	opts.NodeName, opts.NodeIPs, opts.DetectLocal = "", nil, DetectLocal{}
	base, err := New(silent(t), opts.Options, opts.ClusterOptions)
	require.NoError(t, err)
	base.indexAbove = 2
	f.base = base
	return f
}

func (f *fleet) apply(e event) {
	if obj, isNode := e.obj.(*corev1.Node); isNode {
		if tracker := f.trackers[obj.Name]; tracker != nil && e.deleted {
			tracker.Delete()
		} else if tracker != nil {
			tracker.Set(obj)
		}
		return
	}
	for _, s := range append(slices.Collect(maps.Values(f.classes)), f.base) {
		_, err := s.Apply(e.obj, e.deleted)
		require.NoError(f.t, err)
	}
	for zone, named := range f.base.ChangedZones() {
		require.NotEqual(f.t, named, f.named[zone], "it has changed")
		f.named[zone] = named
	}
}

// state is the state of a node in a form that can be compared.
type fleetState struct {
	node      *model.Node
	services  map[model.ServiceName]*model.Service
	endpoints map[model.EndpointKey]*model.Endpoint
}

// of overlays the state of a node's class with the node's parts. A node in a zone that no hint names has the class
// without a zone.
func (f *fleet) of(name string) fleetState {
	tracker := f.trackers[name]
	class := tracker.Class()
	if class.Zone != "" && (class.NoZoneHints || !f.named[class.Zone]) {
		class.Zone = ""
		f.unnamed++
	}
	state := f.classes[class]
	if state == nil {
		state = f.base.ForClass(class)
		f.classes[class], f.shared[class] = state, newMirror()
		f.parts[class] = map[model.ServiceName]map[string]*NodePart{}
	}
	shared := f.shared[class]
	names := state.PendingServices()
	state.Flush(shared)
	f.updateParts(class, names)
	got := fleetState{tracker.Node(shared.node.ServiceCIDRs), map[model.ServiceName]*model.Service{},
		map[model.EndpointKey]*model.Endpoint{}}
	for name2, svc := range shared.services {
		parts := state.NodeParts(name2, func(node string) bool { return node == name })
		part := parts[name]
		got.services[name2] = part.Service(svc, got.node)
		keys := map[model.EndpointKey]bool{}
		for key := range shared.endpoints {
			keys[key] = key.Port.Service == name2
		}
		if part != nil {
			for _, e := range part.Endpoints {
				keys[e.Key()] = true
			}
		}
		for key, own := range keys {
			if e := part.Endpoint(class, key, shared.endpoints[key]); own && e != nil {
				got.endpoints[key] = e
			}
		}
	}
	return got
}

// updateParts asks for the changed parts, and checks that all parts are known afterwards.
func (f *fleet) updateParts(class Class, names []model.ServiceName) {
	state, known := f.classes[class], f.parts[class]
	everybody := func(string) bool { return true }
	for _, name := range names {
		parts, all := state.ChangedParts(name, everybody)
		if all {
			known[name] = parts
		} else {
			f.some++
			for node, part := range parts {
				if part == nil {
					delete(known[name], node)
				} else {
					known[name][node] = part
				}
			}
		}
	}
	for name := range f.shared[class].services {
		want := state.NodeParts(name, everybody)
		assert.ElementsMatch(f.t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(known[name])), "%v", name)
		for node, part := range want {
			assert.True(f.t, part.Equal(known[name][node]), "node %s: %v\n%v", node, part, known[name][node])
		}
	}
}

// TestAClassAndItsPartsAreWhatEachNodeHas: the state of a node that is combined from its class and its parts equals the
// one that is computed for it alone, whatever happens, and whenever a class is created.
func TestAClassAndItsPartsAreWhatEachNodeHas(t *testing.T) {
	changed, unnamed := 0, 0
	for seed := range uint64(120) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			d := testkit.Seeded(seed)
			opts := randomOptions(d)
			if testkit.OneIn(d, 4) {
				opts.NodeIPs = []netip.Addr{netip.MustParseAddr("203.0.113.9")}
			}
			if testkit.OneIn(d, 2) {
				opts.HoldEndpoints = []model.ServiceName{{Namespace: "ns", Name: "web"}, {Namespace: "ns2", Name: "web"}}
			}
			nodes := []string{me, other, "node-3"}
			f := newFleet(t, opts, nodes...)
			alone, mirrors := map[string]*State{}, map[string]*mirror{}
			for _, name := range nodes {
				opts.NodeName = name
				state, err := New(silent(t), opts.Options, opts.ClusterOptions)
				require.NoError(t, err)
				alone[name], mirrors[name] = state, newMirror()
			}
			for range 30 {
				for range 1 + d.IntN(4) {
					e := randomEvent(d)
					f.apply(e)
					for _, name := range nodes {
						_, err := alone[name].Apply(e.obj, e.deleted)
						require.NoError(t, err)
					}
				}
				if testkit.OneIn(d, 3) {
					f.base.Discard()
				}
				for _, name := range nodes {
					alone[name].Flush(mirrors[name])
					want, got := mirrors[name], f.of(name)
					assert.True(t, want.node.Equal(got.node), "%v\n%v", want.node, got.node)
					assert.Equal(t, len(want.services), len(got.services))
					for service, s := range want.services {
						assert.True(t, s.Equal(got.services[service]), "node %s: %v\n%v", name, s,
							got.services[service])
					}
					for key := range want.endpoints {
						assert.Equal(t, want.endpoints[key].String(), fmt.Sprint(got.endpoints[key]), "node %s", name)
						assert.True(t, want.endpoints[key].Equal(got.endpoints[key]), "node %s: %v", name, key)
					}
					for key := range got.endpoints {
						assert.NotNil(t, want.endpoints[key], "node %s: %v", name, got.endpoints[key])
					}
					assert.Equal(t, alone[name].AwaitsNodeCIDR(), f.trackers[name].AwaitsNodeCIDR())
				}
				if t.Failed() {
					return
				}
			}
			changed, unnamed = changed+f.some, unnamed+f.unnamed
		})
	}
	assert.Greater(t, changed, 300, "times that not all parts were worked out")
	assert.Greater(t, unnamed, 300, "states of nodes whose zone no hint named")
}

// Discard leaves nothing behind of services that were added and deleted.
func TestADiscardingStateFreesWhatIsGone(t *testing.T) {
	s, err := New(t.Context(), Options{}, ClusterOptions{})
	require.NoError(t, err)
	s.setService(aService("web"))
	s.setEndpointSlice(aSlice("s1", ofService("web")))
	assert.Equal(t, []model.ServiceName{{Namespace: "ns", Name: "web"}}, s.PendingServices())
	s.Discard()
	assert.False(t, s.Pending().Any())
	class := s.ForClass(Class{})
	assert.True(t, class.Pending().Any(), "a class begins with everything")
	s.deleteService(aService("web"))
	s.deleteEndpointSlice(aSlice("s1"))
	s.Discard()
	assert.Empty(t, s.services)
	assert.Empty(t, s.PendingServices())
	m := newMirror()
	class.Flush(m)
	assert.Len(t, m.services, 1, "one does not know of the other")
}
