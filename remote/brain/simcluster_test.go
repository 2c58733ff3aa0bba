package brain

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// simCluster is the cluster of a simulation: all that has ever happened to it, which brains watch with a lag. Each
// object has a resourceVersion. The address of the one endpoint of a service, simClock, says how many changes there
// have been, so that it can be seen how new a state is.
type simCluster struct {
	services, endpoints, nodes int

	mu      sync.Mutex
	objects map[string]metav1.Object
	past    []simEvent
	version uint64
	news    chan struct{} // closed with the next change
	pods    [][]int       // by service: the generation of each endpoint
	down    map[int]bool  // zones that are lost
	changes int
}

type simEvent struct {
	at      time.Time
	changes []watch.Change
	version uint64
}

var (
	simZones = []string{"a", "b", "c"}
	simClock = model.ServiceName{Namespace: "sim", Name: "clock"}
)

func simNodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func simAddress(first byte, n int) string {
	return netip.AddrFrom4([4]byte{first, byte(n >> 16), byte(n >> 8), byte(n)}).String()
}

func newSimCluster(nodes int) *simCluster {
	c := &simCluster{services: max(nodes/10, 1), endpoints: 10, nodes: nodes, objects: map[string]metav1.Object{},
		news: make(chan struct{}), down: map[int]bool{}}
	var all []watch.Change
	add := func(o metav1.Object) { all = append(all, watch.Change{Object: o}) }
	for i := range nodes {
		add(kube.Node(simNodeName(i)).Zone(simZones[i%len(simZones)]).InternalIP(simAddress(192, i)).
			PodCIDR(simAddress(10, i<<8) + "/24").Build())
	}
	for i := range c.services {
		add(kube.Service(c.name(i)).ClusterIP(simAddress(100, i)).Port("http", 80).Build())
		c.pods = append(c.pods, make([]int, c.endpoints))
		add(c.slice(i))
	}
	add(kube.Service(simClock.String()).ClusterIP("101.0.0.1").Port("http", 80).Build())
	c.change(all...)
	return c
}

func (c *simCluster) name(service int) string {
	return fmt.Sprintf("team-%d/service-%d", service%100, service)
}

// slice is that of a service, as its pods are now. Some have zone hints, at times, so that nodes change their class.
func (c *simCluster) slice(service int) metav1.Object {
	b := kube.EndpointSlice(c.name(service)).Port("http", 8080)
	for e, generation := range c.pods[service] {
		pod := service*c.endpoints + e
		node := (pod + generation*7919) % c.nodes
		if c.down[node%len(simZones)] {
			continue
		}
		b.Endpoint(simAddress(byte(10+generation%50), pod)).OnNode(simNodeName(node))
		if service%10 == 0 && c.changes/20%2 == 1 {
			b.ForZones(simZones[node%len(simZones)])
		}
	}
	return b.Build()
}

// clockSlice is how the cluster says how new it is.
func (c *simCluster) clockSlice() metav1.Object {
	return kube.EndpointSlice(simClock.String()).Port("http", 8080).Endpoint(simAddress(77, c.changes)).Build()
}

// clockOf is how many changes there had been in a state.
func clockOf(s *sink.Snapshot) int {
	entry := s.Service(simClock)
	if entry == nil || len(entry.Endpoints) != 1 {
		return 0
	}
	a := entry.Endpoints[0].Target.Addr().As4()
	return int(a[1])<<16 | int(a[2])<<8 | int(a[3])
}

// change changes the cluster. It returns how many changes there have been.
func (c *simCluster) change(changes ...watch.Change) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changeNow(changes)
}

// changeNow is change for callers that hold mu.
func (c *simCluster) changeNow(changes []watch.Change) int {
	c.changes++
	changes = append(changes, watch.Change{Object: c.clockSlice()})
	for _, x := range changes {
		c.version++
		x.Object.SetResourceVersion(strconv.FormatUint(c.version, 10))
		c.objects[objectKey(x.Object)] = x.Object
	}
	c.past = append(c.past, simEvent{time.Now(), changes, c.version})
	close(c.news)
	c.news = make(chan struct{})
	return c.changes
}

// replace replaces pods, each with one on another node.
func (c *simCluster) replace(pods ...int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	touched := map[int]bool{}
	for _, pod := range pods {
		service := pod / c.endpoints % c.services
		c.pods[service][pod%c.endpoints]++
		touched[service] = true
	}
	var changes []watch.Change
	for _, service := range slices.Sorted(maps.Keys(touched)) {
		changes = append(changes, watch.Change{Object: c.slice(service)})
	}
	return c.changeNow(changes)
}

// setZone has all pods of a zone vanish, or come back.
func (c *simCluster) setZone(zone int, down bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down[zone] = down
	var changes []watch.Change
	for service := range c.services {
		changes = append(changes, watch.Change{Object: c.slice(service)})
	}
	return c.changeNow(changes)
}

// want is what a node works out that is fed directly.
func (c *simCluster) want(t testing.TB, node string) *sink.Recorder {
	c.mu.Lock()
	defer c.mu.Unlock()
	state, err := localstate.New(context.Background(), localstate.Options{NodeName: node}, localstate.ClusterOptions{})
	require.NoError(t, err)
	for _, key := range slices.Sorted(maps.Keys(c.objects)) {
		if n, isNode := c.objects[key].(*corev1.Node); isNode && n.Name != node {
			continue
		}
		_, err := state.Apply(c.objects[key], false)
		require.NoError(t, err)
	}
	var r sink.Recorder
	state.Flush(&r)
	return &r
}

// laggingSource is a watch.Source that tells everything some time after it happened.
type laggingSource struct {
	*simCluster
	lag time.Duration
}

func (s laggingSource) Run(ctx context.Context, _ string, h watch.Handler) error {
	next, all := s.list()
	h.Update(all...)
	s.bookmark(h, next)
	h.Synced()
	bookmarks := time.NewTicker(time.Minute) // as API servers do
	defer bookmarks.Stop()
	for {
		s.mu.Lock()
		news := s.news
		var due simEvent
		if next < len(s.past) {
			due = s.past[next]
		}
		s.mu.Unlock()
		var wait <-chan time.Time
		if due.changes != nil {
			news = nil
			if age := time.Since(due.at); age >= s.lag {
				h.Update(due.changes...)
				next++
				continue
			} else {
				wait = time.After(s.lag - age)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-news:
		case <-wait:
		case <-bookmarks.C:
			s.bookmark(h, next)
		}
	}
}

// list returns the cluster as it was, and how many events that includes.
func (s laggingSource) list() (next int, all []watch.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[string]metav1.Object{}
	for ; next < len(s.past) && (next == 0 || time.Since(s.past[next].at) >= s.lag); next++ {
		for _, x := range s.past[next].changes {
			known[objectKey(x.Object)] = x.Object
		}
	}
	for _, key := range slices.Sorted(maps.Keys(known)) {
		all = append(all, watch.Change{Object: known[key]})
	}
	return next, all
}

func (s laggingSource) bookmark(h watch.Handler, next int) {
	s.mu.Lock()
	version := strconv.FormatUint(s.past[next-1].version, 10)
	s.mu.Unlock()
	for _, kind := range []metav1.Object{&corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Node{}} {
		h.(serverHandler).Heard(kind, version)
	}
}
