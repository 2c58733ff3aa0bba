package brain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// The dimensions of what a cluster and its nodes ask of a brain.
const (
	nNodes        = iota // Nodes, each with clients
	nStreams             // clients of each node
	nZones               // zones that the nodes are in
	nServices            // Services with an endpoint on one and the same node, all at once
	nOneByOne            // further ones, one after the other
	nEndpoints           // endpoints of one Service, on all nodes
	nVersions            // changes, one after the other
	nBehind              // clients that come back, each with another version
	numDimensions        // how many dimensions there are
)

// extent is how much there is in each dimension.
type extent [numDimensions]int

func smallestExtent() extent {
	return extent{nNodes: 2, nStreams: 1, nZones: 2, nServices: 2, nOneByOne: 2, nEndpoints: 2, nVersions: 2, nBehind: 2}
}

func (f extent) String() string {
	names := [numDimensions]string{"nodes", "streams", "zones", "services", "one by one", "endpoints", "versions",
		"behind"}
	var parts []string
	for i, n := range f {
		if n != smallestExtent()[i] {
			parts = append(parts, fmt.Sprint(n, " ", names[i]))
		}
	}
	return strings.Join(parts, ", ")
}

// times multiplies some dimensions.
func (f extent) times(factor int, dimensions ...int) extent {
	for _, i := range dimensions {
		f[i] *= factor
	}
	return f
}

// linear is how much there is to do at least.
func (f extent) linear() int {
	classes := min(f[nZones], f[nNodes], 64)
	return f[nNodes]*f[nStreams] + classes*(f[nServices]+f[nOneByOne]+f[nEndpoints]+f[nVersions]) + f[nZones] + f[nBehind]
}

// extentProducts are the pairs of dimensions whose product is bounded: the number of classes is, a node may have 64
// clients, and a client that comes back is sent what the kept versions hold.
func extentProducts() map[[2]int]string {
	const classes = "--classes"
	return map[[2]int]string{
		{nNodes, nStreams}:   "64 streams of a node",
		{nNodes, nZones}:     classes, // each knows the nodes that endpoints of other zones name
		{nZones, nServices}:  classes,
		{nZones, nOneByOne}:  classes,
		{nZones, nEndpoints}: classes,
		{nZones, nVersions}:  classes,
		{nVersions, nBehind}: "--keep-bytes",
	}
}

// extentSteps has everything happen, and counts.
func extentSteps(t *testing.T, f extent) (steps []testkit.Step) {
	synctest.Test(t, func(t *testing.T) {
		b := newWorst(t)
		do := func(name string, what func()) {
			steps = append(steps, testkit.Step{Name: name, Work: testkit.Measure(func() {
				what()
				synctest.Wait()
			})})
		}
		nodes, deleted := f.nodes()
		do("Nodes coming", func() { b.cluster.change(nodes...) })
		do("clients coming", func() { f.join(b) })
		do("a Service on all nodes", func() { b.cluster.change(f.onAllNodes(f[nEndpoints])...) })
		do("half of its endpoints going", func() { b.cluster.change(f.onAllNodes(f[nEndpoints] / 2)...) })
		do("they come back", func() { b.cluster.change(f.onAllNodes(f[nEndpoints])...) })
		do("Services on a node", func() { b.change(f.onOneNode("s", f[nServices])...) })
		do("more of them, one by one", func() {
			services := f.onOneNode("one", f[nOneByOne])
			for i := 0; i < len(services); i += 2 {
				b.change(services[i : i+2]...)
			}
		})
		do("versions", func() {
			for i := range f[nVersions] {
				b.cluster.set(web("changing", fmt.Sprintf("10.9.%d.%d", i/250, i%250))...)
				synctest.Wait()
			}
		})
		do("clients coming back", func() { f.comeBack(t, b) })
		do("Nodes going", func() { b.cluster.change(deleted...) })
		do("Nodes coming again", func() { b.cluster.change(nodes...) })
		do("clients going", b.leaveAll)
	})
	return steps
}

func (f extent) zone(node int) string { return fmt.Sprint("zone-", node%f[nZones]) }

// nodes are the Nodes, and how they go.
func (f extent) nodes() (come, gone []watch.Change) {
	for i := range f[nNodes] {
		node := kube.Node(fmt.Sprint("node-", i)).Zone(f.zone(i)).PodCIDR("10.244.0.0/24").Build()
		come = append(come, watch.Change{Object: node})
		gone = append(gone, watch.Change{Object: node, Deleted: true})
	}
	return come, gone
}

// join has all clients connect.
func (f extent) join(b *worst) {
	for i := range f[nNodes] * f[nStreams] {
		node := i % f[nNodes]
		name := fmt.Sprint("node-", node)
		c := &client{server: &b.server.common, node: name, ctx: b.t.Context(), stream: nullStream{}, sends: true}
		if err := b.server.join(c, localstate.Options{Zone: f.zone(node)}); err != nil {
			require.Equal(b.t, codes.ResourceExhausted, status.Code(err), err)
			continue
		}
		if _, _, _, err := c.newest(); err != nil {
			b.server.leave(c)
			continue
		}
		b.clients[name] = append(b.clients[name], c)
	}
}

// onOneNode are n Services with an endpoint each, on the same node, which is a client: the Service and its slice, one
// after the other.
func (f extent) onOneNode(prefix string, n int) (changes []watch.Change) {
	for i := range n {
		name := fmt.Sprint("default/", prefix, i)
		changes = append(changes, watch.Change{Object: kube.Service(name).Port("http", 80).Build()},
			sliceOnOneNode(name, "10.7.0.1"))
	}
	return changes
}

func sliceOnOneNode(service, address string) watch.Change {
	return watch.Change{Object: kube.EndpointSlice(service).Port("http", 8080).Endpoint(address).OnNode("node-0").Build()}
}

// change makes changes, and sends what follows from them to a client of the node that they are on.
func (b *worst) change(changes ...watch.Change) {
	b.cluster.change(changes...)
	synctest.Wait()
	for _, c := range b.clients["node-0"][:1] {
		require.NoError(b.t, c.sendNews())
		c.mu.Lock()
		c.has, c.busy = c.sent, false // it acknowledges
		c.mu.Unlock()
	}
}

// nullStream is a stream that drops what is sent.
type nullStream struct{ stream }

func (nullStream) SendMsg(any) error { return nil }

// onAllNodes is a Service with endpoints on all nodes, in slices of 1,000.
func (f extent) onAllNodes(endpoints int) (changes []watch.Change) {
	all := []metav1.Object{kube.Service("default/all").Port("http", 80).Build()}
	for first := 0; first < f[nEndpoints]; first += 1000 {
		slice := kube.EndpointSlice("default/all").Port("http", 8080)
		for i := first; i < min(endpoints, first+1000); i++ {
			slice.Endpoint(fmt.Sprintf("10.8.%d.%d", i/250, i%250)).OnNode(fmt.Sprint("node-", i%f[nNodes]))
		}
		object := slice.Build()
		object.Name += fmt.Sprint("-", first)
		all = append(all, object)
	}
	for _, object := range all {
		changes = append(changes, watch.Change{Object: object})
	}
	return changes
}

// comeBack has clients of one class ask for the difference from a version each.
func (f extent) comeBack(t *testing.T, b *worst) {
	from, batches, current := b.versions(f[nVersions])
	for i := range f[nBehind] {
		assert.False(t, batches.difference(t.Context(), from[i%len(from)], current).lost)
	}
}

// versions returns the last versions of a class, the batches to its current one, and that.
func (b *worst) versions(n int) ([]*version, *batches, *version) {
	b.server.mu.Lock()
	defer b.server.mu.Unlock()
	var g *group
	for _, key := range slices.SortedFunc(maps.Keys(b.server.classes), compareZones) {
		g = b.server.classes[key]
	}
	return slices.Clone(g.recent[max(0, len(g.recent)-n):]), g.batches, g.current
}

func compareZones(a, b localstate.Class) int { return strings.Compare(a.Zone, b.Zone) }

// TestNoFleetCostsABrainMoreThanItIs doubles each dimension, and each pair of them. The bytes that are allocated may at
// most double, or with a pair in the table of products multiply by four; they get half as much again, because lists and
// maps grow in steps, and some for each item. It is about what a brain does; for what it keeps see
// TestNoNodesCostABrainMoreThanTheyAskFor.
func TestNoFleetCostsABrainMoreThanItIs(t *testing.T) {
	many := 1000
	if need.IsDeep() {
		many = 8000
	}
	forAllExtents(many, func(f extent, one, other int, product bool) {
		t.Run(f.String(), func(t *testing.T) {
			larger, factor := f.times(2, one), 2
			if one != other {
				larger = larger.times(2, other)
			}
			if product {
				factor = 4
			}
			once, twice := extentSteps(t, f), extentSteps(t, larger)
			for i := range once {
				assert.LessOrEqual(t, twice[i].Bytes, factor*3/2*max(once[i].Bytes, 256*f.linear()), once[i].Name)
			}
		})
	})
}

// What a node is sent of a change, and what the brain keeps of it, follows from the change.
func TestAChangeOnANodeCostsNoMoreBesideItsServices(t *testing.T) {
	cost := func(services int) (bytes int) {
		synctest.Test(t, func(t *testing.T) {
			b, f := newWorst(t), smallestExtent()
			nodes, _ := f.nodes()
			b.cluster.change(nodes...)
			f.join(b)
			b.change(f.onOneNode("s", services)...)
			b.change(sliceOnOneNode("default/s0", "10.7.0.2"))
			bytes = testkit.Measure(func() { b.change(sliceOnOneNode("default/s0", "10.7.0.3")) }).Bytes
		})
		return bytes
	}
	few, many := cost(10), cost(4000)
	t.Log(few, many)
	assert.LessOrEqual(t, many, 2*few)
}

// What allocates nothing does not show in bytes. So each dimension is multiplied by four, and the processor times are
// compared.
func TestNoFleetTakesMoreTimeThanItIs(t *testing.T) {
	need.Deep(t)
	try := func(f, larger extent) {
		t.Run(f.String(), func(t *testing.T) {
			stepsOf := func(f extent) func() []testkit.Step {
				return func() []testkit.Step { return extentSteps(t, f) }
			}
			testkit.CompareTimes(t, stepsOf(f), stepsOf(larger))
		})
	}
	forAllExtents(2000, func(f extent, one, _ int, _ bool) { try(f, f.times(4, one)) })
	f := smallestExtent()
	f[nZones], f[nNodes], f[nEndpoints] = 1, 10000, 10000
	try(f, f.times(4, nNodes, nEndpoints))
}

// A client may say that it has any of the versions that are kept, one after the other. Only a few of the differences
// stay in memory: those that were used last.
func TestFewDifferencesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWorst(t)
		b.join(demand{1, 1, 1, 1, 1})
		f := extent{nVersions: 5 * maxDifferences}
		for i := range f[nVersions] + 1 {
			b.cluster.set(web("changing", fmt.Sprintf("10.9.%d.%d", i/250, i%250))...)
			synctest.Wait()
		}
		from, batches, current := b.versions(f[nVersions])
		full := batches.difference(t.Context(), nil, current)
		popular := batches.difference(t.Context(), from[0], current)
		for _, v := range from {
			assert.False(t, batches.difference(t.Context(), v, current).lost)
			assert.Same(t, popular, batches.difference(t.Context(), from[0], current), "others use it, too")
			assert.LessOrEqual(t, len(batches.by), maxDifferences)
		}
		assert.Same(t, full, batches.difference(t.Context(), nil, current), "the whole state stays")
	})
}

// forAllExtents calls a function for each dimension, and each pair of them, one of which is large. A node has few
// streams, and there are few classes.
func forAllExtents(many int, try func(f extent, one, other int, product bool)) {
	products := extentProducts()
	for one := range numDimensions {
		if one == nStreams || one == nZones {
			continue
		}
		for other := range numDimensions {
			f := smallestExtent()
			f[other] = 8
			f[one] = many
			_, straight := products[[2]int{one, other}]
			_, reversed := products[[2]int{other, one}]
			try(f, one, other, straight || reversed)
		}
	}
}

// A principal that wants a slot does not look at all others: they are looked at once in a while, together.
func TestSlotsAreSweptTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s classSlots
		var begin time.Time
		for i := range 3000 {
			time.Sleep(maxClassPause / 5000)
			s.leave(s.join(principal{node: fmt.Sprint(i)}))
			if i == 0 {
				begin = s.swept
			}
			assert.Equal(t, begin, s.swept)
		}
		time.Sleep(maxClassPause)
		s.join(principal{node: "last"})
		assert.Len(t, s.of, 1, "nobody else has one or waits for one")
	})
}

// Former Nodes of clients stay. They are not looked at again for each further Node, and few of the others are kept.
func TestFormerNodesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWorst(t)
		f := smallestExtent()
		f[nNodes] = 3 * maxForgotten
		come, gone := f.nodes()
		b.cluster.change(come...)
		f.join(b)
		sweeps, limit := 0, 0
		for _, change := range gone {
			b.cluster.change(change)
			if now := b.server.formerLimit; now != limit {
				sweeps, limit = sweeps+1, now
			}
			assert.GreaterOrEqual(t, limit, len(b.server.former), "else the next one looks at all")
		}
		assert.LessOrEqual(t, sweeps, 4)
		assert.Len(t, b.server.former, f[nNodes])
		b.leaveAll()
		for i := range 3 * f[nNodes] {
			other := kube.Node(fmt.Sprint("other-", i)).PodCIDR("10.244.0.0/24").Build()
			b.cluster.change(watch.Change{Object: other}, watch.Change{Object: other, Deleted: true})
			assert.LessOrEqual(t, len(b.server.former), 2*f[nNodes])
		}
		assert.LessOrEqual(t, len(b.server.former), maxForgotten)
	})
}
