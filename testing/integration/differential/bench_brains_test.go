package differential

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/proxy"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// brain is what the benchmarks measure.
type brain interface {
	service(*corev1.Service)
	// slice takes a slice, new or changed, and reports whether a sync is due.
	slice(*discoveryv1.EndpointSlice) bool
	sync()
	// endpoints counts the endpoints in the cluster sets of all services.
	endpoints() int
}

// upstreamBrain does what the nftables proxier does before it writes rules, in one family: at every sync it takes the
// changes in, categorizes the endpoints of every service, and counts local endpoints for health checks.
type upstreamBrain struct {
	serviceChanges   *proxy.ServiceChangeTracker
	endpointsChanges *proxy.EndpointsChangeTracker
	svcPortMap       proxy.ServicePortMap
	endpointsMap     proxy.EndpointsMap
	labels           map[string]string
	cluster          int
}

func newUpstreamBrain() brain {
	return &upstreamBrain{
		serviceChanges:   proxy.NewServiceChangeTracker(corev1.IPv4Protocol, nil, nil),
		endpointsChanges: proxy.NewEndpointsChangeTracker(corev1.IPv4Protocol, nodeName, nil, nil),
		svcPortMap:       proxy.ServicePortMap{},
		endpointsMap:     proxy.EndpointsMap{},
		labels:           map[string]string{corev1.LabelTopologyZone: "za"},
	}
}

func (u *upstreamBrain) service(s *corev1.Service) { u.serviceChanges.Update(nil, s) }

func (u *upstreamBrain) slice(s *discoveryv1.EndpointSlice) bool {
	return u.endpointsChanges.EndpointSliceUpdate(s, false)
}

func (u *upstreamBrain) sync() {
	u.svcPortMap.Update(u.serviceChanges)
	u.endpointsMap.Update(u.endpointsChanges)
	u.cluster = 0
	for name, info := range u.svcPortMap {
		cluster, _, _, _ := proxy.CategorizeEndpoints(u.endpointsMap[name], info, nodeName, u.labels)
		u.cluster += len(cluster)
	}
	_ = u.svcPortMap.HealthCheckNodePorts()
	_ = u.endpointsMap.LocalReadyEndpoints()
}

func (u *upstreamBrain) endpoints() int { return u.cluster }

// localBrain is localstate with a receiver that only counts.
type localBrain struct {
	state *localstate.State
	counter
}

func newLocalBrain() brain { return &localBrain{state: newState()} }

func newState() *localstate.State {
	state, err := localstate.New(context.Background(),
		localstate.Options{NodeName: nodeName, Families: []model.Family{model.IPv4}}, localstate.ClusterOptions{})
	if err != nil {
		panic(err)
	}
	apply(state, kube.Node(nodeName).Zone("za").Build())
	return state
}

func apply(state *localstate.State, object metav1.Object) (changed bool) {
	changed, err := state.Apply(object, false)
	if err != nil {
		panic(err)
	}
	return changed
}

func (l *localBrain) service(s *corev1.Service)               { apply(l.state, s) }
func (l *localBrain) slice(s *discoveryv1.EndpointSlice) bool { return apply(l.state, s) }
func (l *localBrain) sync()                                   { l.state.Flush(&l.counter) }
func (l *localBrain) endpoints() int                          { return l.set - l.deleted }

type counter struct{ set, deleted int }

func (c *counter) SetService(*model.Service)        {}
func (c *counter) DeleteService(model.ServiceName)  {}
func (c *counter) SetEndpoint(*model.Endpoint)      { c.set++ }
func (c *counter) DeleteEndpoint(model.EndpointKey) { c.deleted++ }

// fullStateBrain is localstate with a full-state sink, whose callback reads what changed: the whole path to a backend.
type fullStateBrain struct {
	state *localstate.State
	sink  *sink.FullState
	last  *sink.Snapshot
	seen  int
}

func newFullStateBrain() brain {
	b := &fullStateBrain{state: newState()}
	b.sink = sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		for change := range s.ChangesSince(b.last) {
			for range change.Endpoints() {
				b.seen++
			}
		}
		b.last = s
		return nil
	})
	return b
}

func (b *fullStateBrain) service(s *corev1.Service)               { apply(b.state, s) }
func (b *fullStateBrain) slice(s *discoveryv1.EndpointSlice) bool { return apply(b.state, s) }

func (b *fullStateBrain) sync() {
	b.state.Flush(b.sink)
	if err := b.sink.Sync(context.Background()); err != nil {
		panic(err)
	}
}

func (b *fullStateBrain) endpoints() int { return b.last.NumEndpoints() }

// brains are those to compare, upstream's first.
func brains() []struct {
	name string
	make func() brain
} {
	return []struct {
		name string
		make func() brain
	}{{"upstream", newUpstreamBrain}, {"localstate", newLocalBrain}, {"localstate+fullstate", newFullStateBrain}}
}

// size is a number of services with a number of endpoints each.
type size struct{ services, endpoints int }

func (s size) String() string { return fmt.Sprintf("%dx%d", s.services, s.endpoints) }

// service is the i-th service; every tenth is a load balancer with local endpoints and a health check.
func (s size) service(i int) *corev1.Service {
	b := kube.Service(fmt.Sprintf("team-%d/service-%d", i%100, i)).Port("http", 80).
		ClusterIP(netip.AddrFrom4([4]byte{10, byte(96 + i>>16), byte(i >> 8), byte(i)}).String())
	if i%10 == 0 {
		b.LoadBalancerIP(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8),
			byte(i)}).String()).ExternalLocal().HealthCheckNodePort(int32(30000 + i/10))
	}
	return b.Build()
}

// slice is the slice of the i-th service. In each version another pod replaces the first one.
func (s size) slice(i, version int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("service-%d", i)
	b := kube.EndpointSlice(fmt.Sprintf("team-%d/%s", i%100, name)).Name(name+"-abcde").Port("http", 8080)
	for e := range s.endpoints {
		n := i*s.endpoints + e
		addr := netip.AddrFrom4([4]byte{11, byte(n >> 16), byte(n >> 8), byte(n)})
		if e == 0 && version > 0 {
			addr = netip.AddrFrom4([4]byte{12, byte(version), byte(i >> 8), byte(i)})
		}
		b.Endpoint(addr.String()).OnNode(fmt.Sprintf("n%d", n%500)).InZone(fmt.Sprintf("z%c", 'a'+n%3)).
			Pod(fmt.Sprintf("%s-%d-%d", name, e, version))
	}
	return b.Build()
}

// objects is everything that a cluster has.
type objects struct {
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice
}

func (s size) objects() objects {
	var o objects
	for i := range s.services {
		o.services = append(o.services, s.service(i))
		o.slices = append(o.slices, s.slice(i, 0))
	}
	return o
}

// load hands everything over and syncs.
func (o objects) load(b brain) {
	for i, svc := range o.services {
		b.service(svc)
		b.slice(o.slices[i])
	}
	b.sync()
}

// TestBrains: the two sides of the benchmarks do the same work.
func TestBrains(t *testing.T) {
	s := size{50, 4}
	for _, brain := range brains() {
		b := brain.make()
		s.objects().load(b)
		require.Equal(t, 200, b.endpoints(), brain.name)
		require.True(t, b.slice(s.slice(7, 1)), brain.name)
		b.sync()
		require.Equal(t, 200, b.endpoints(), brain.name)
		require.False(t, b.slice(s.slice(7, 1)), "%s: the same slice again", brain.name)
	}
}
