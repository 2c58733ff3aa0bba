package brain

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// listing is a Service with external IPs.
func listing(name string, ips ...string) metav1.Object {
	s := kube.Service("default/"+name).ClusterIP("10.96.0.20").Port("http", 80)
	for _, ip := range ips {
		s.ExternalIP(ip)
	}
	return s.Build()
}

// withoutNodes is a source that delivers no Nodes.
type withoutNodes struct{ *cluster }

func (withoutNodes) DeliversNodes() bool { return false }

// nextNodeVIPs receives a batch, acknowledges it and returns its NodeVIPs.
func nextNodeVIPs(t *testing.T, stream clientStream) string {
	t.Helper()
	batch := receiveBatch(t, stream)
	sync := batch[len(batch)-1].Sync
	sendAck(t, stream, sync.Revision)
	if sync.NodeVIPs == nil {
		return "-"
	}
	list, err := wire.DecodeNodeVIPs(sync.NodeVIPs)
	require.NoError(t, err)
	return fmt.Sprint(list)
}

// A batch has the NodeVIPs if they have changed since the last one, and the first batch of a stream always.
func TestNodeVIPsComeWithTheBatchThatNeedsThem(t *testing.T) {
	c := newCluster(append(baseObjects(), listing("a", "198.51.100.9"))...)
	b := quick(t, c)
	stream := rawStream(t, b.target, &remotev1.Hello{Node: "n1"})
	other := rawStream(t, b.target, &remotev1.Hello{Node: "n3"})
	for i, step := range []struct {
		change func()
		want   string
	}{
		{func() {}, "[]"},
		{func() { c.set(listing("b", "192.0.2.2", "198.51.100.8")) }, "[192.0.2.2]"},
		{func() { c.set(listing("c", "192.0.2.2")) }, "-"},
		{func() { c.set(kube.Node("n4").InternalIP("198.51.100.9").Build()) }, "[192.0.2.2 198.51.100.9]"},
		{func() { c.delete(listing("b")) }, "[192.0.2.2 198.51.100.9]"}, // all clients share it, whatever they have
		{func() { c.delete(listing("c")) }, "[198.51.100.9]"},
		{func() { c.delete(kube.Node("n4").Build()) }, "[]"},
		{func() { c.set(listing("d", "198.51.100.7")) }, "[]"},
		{func() { c.set(listing("e", "198.51.100.7")) }, "-"},
	} {
		step.change()
		assert.Equal(t, step.want, nextNodeVIPs(t, stream), "step %d", i)
		assert.Equal(t, step.want, nextNodeVIPs(t, other), "step %d", i)
	}
	c.set(listing("b", "192.0.2.2"))
	assert.Equal(t, "[192.0.2.2]", nextNodeVIPs(t, stream))
	again := rawStream(t, b.target, &remotev1.Hello{Node: "n1"})
	assert.Equal(t, "[192.0.2.2]", nextNodeVIPs(t, again))

	unknown := serve(t, Options{Source: withoutNodes{newCluster(listing("a", "192.0.2.2"))}}, socket(t))
	assert.Equal(t, "-", nextNodeVIPs(t, rawStream(t, unknown.target, &remotev1.Hello{Node: "n1"})))
}

// Without Nodes, nothing is kept of what Services list.
func TestWithoutNodesNoNodeVIPsAreLookedFor(t *testing.T) {
	s, err := New(quiet(t), Options{Source: withoutNodes{newCluster()}})
	require.NoError(t, err)
	serverHandler{s}.Update(watch.Change{Object: listing("a", "192.0.2.2")})
	assert.Empty(t, s.vips.services)
}

// A Feed passes them on before the state, without the node's own addresses, and says if the server does not know.
func TestAFeedPassesNodeVIPsOn(t *testing.T) {
	for name, test := range map[string]struct {
		of     func(*cluster) *replica
		before string
		after  string
	}{
		"known": {func(c *cluster) *replica { return quick(t, c) }, "[192.0.2.2] true", "[192.0.2.2 192.0.2.3] true"},
		"not known": {func(c *cluster) *replica {
			return serve(t, Options{Source: withoutNodes{c}, limits: limits{minInterval: -1}}, socket(t))
		}, "[] false", "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(append(baseObjects(), listing("a", "192.0.2.1", "192.0.2.2"))...)
			b := test.of(c)
			calls := make(chan string, 100)
			told := func() string {
				select {
				case call := <-calls:
					return call
				default:
					return "nothing"
				}
			}
			var rec sink.Recorder
			follow(t, &rec, remote.Options{Targets: []string{b.target}, State: localstate.Options{NodeName: "n1"},
				NodeVIPs: func(list []netip.Addr, known bool) { calls <- fmt.Sprint(list, known) }})
			_, err := rec.NextWave(t.Context())
			require.NoError(t, err)
			assert.Equal(t, test.before, told())
			c.set(listing("b", "192.0.2.3"))
			_, err = rec.NextWave(t.Context())
			require.NoError(t, err)
			assert.Equal(t, test.after, told())
			assert.Empty(t, calls)
		})
	}
}

// An address that moves from this node to another one becomes another's, though the server has nothing new to say of
// it.
func TestAnAddressThatMovesToAnotherNodeIsPassedOn(t *testing.T) {
	c := newCluster(append(baseObjects(), listing("a", "192.0.2.1"))...)
	b := quick(t, c)
	calls := make(chan string, 100)
	var rec sink.Recorder
	follow(t, &rec, remote.Options{Targets: []string{b.target}, State: localstate.Options{NodeName: "n1"},
		NodeVIPs: func(list []netip.Addr, known bool) { calls <- fmt.Sprint(list, known) }})
	assert.Equal(t, "[] true", <-calls)
	c.set(kube.Node("n2").InternalIP("192.0.2.2", "192.0.2.1").Build())
	c.set(kube.Node("n1").InternalIP("192.0.2.7").Build())
	assert.Equal(t, "[192.0.2.1] true", <-calls)
	c.set(kube.Node("n1").InternalIP("192.0.2.1").Build())
	assert.Equal(t, "[] true", <-calls)
}

// Whatever changes, in whatever order, the addresses are those that a look at everything finds.
func TestNodeVIPsAreFoundAfterAnyChange(t *testing.T) {
	r := testkit.Seeded(3)
	v := newNodeVIPs()
	nodes, services := map[string]*corev1.Node{}, map[string]*corev1.Service{}
	address := func() string { return fmt.Sprintf("192.0.2.%d", r.IntN(6)) }
	message := &remotev1.NodeVIPs{}
	found, none := 0, 0
	for range 5000 {
		name := testkit.Pick(r, "a", "b", "c")
		if testkit.OneIn(r, 2) {
			node := kube.Node(name).InternalIP(address(), address(), address()).Build()
			if testkit.OneIn(r, 3) {
				v.setNode(nodes[name], nil)
				delete(nodes, name)
			} else {
				v.setNode(nodes[name], node)
				nodes[name] = node
			}
		} else {
			service := kube.Service("default/"+name).Port("http", 80).ExternalIP(address()).
				LoadBalancerIP(address()).LoadBalancerIP(address()).Build()
			deleted := testkit.OneIn(r, 3)
			v.setService(service, deleted)
			if services[name] = service; deleted {
				delete(services, name)
			}
		}
		var want []netip.Addr
		for i := range 6 {
			a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
			ofNode, listed := false, false
			for _, n := range nodes {
				ofNode = ofNode || slices.Contains(localstate.NodeIPs(n), a)
			}
			for _, s := range services {
				listed = listed || slices.Contains(localstate.ExternalIPs(s), a)
			}
			if ofNode && listed {
				want = append(want, a)
			}
		}
		before := message
		message = v.message(message)
		got, err := wire.DecodeNodeVIPs(message)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(want), fmt.Sprint(got))
		if found++; message == before {
			none++
		}
	}
	assert.Greater(t, none, 1000)
	assert.Less(t, none, found-1000)
	for _, counts := range []map[netip.Addr]int{v.nodes, v.listed} {
		for _, n := range counts {
			require.Positive(t, n)
		}
	}
}
