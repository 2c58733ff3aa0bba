package churn

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newCluster(t testing.TB, opts Options) *Cluster {
	t.Helper()
	c, err := New(opts)
	require.NoError(t, err)
	return c
}

// text returns the objects as JSON.
func text(t testing.TB, objects any) string {
	t.Helper()
	b, err := json.Marshal(objects)
	require.NoError(t, err)
	return string(b)
}

func TestTheStartIsOfTheSizeThatWasAskedFor(t *testing.T) {
	c := newCluster(t, Options{Services: 7, Endpoints: 150, Nodes: 4, Zones: 2, DualStack: true})
	services, nodes, perService := 0, map[string]string{}, map[string]int{}
	for _, object := range c.Objects() {
		switch o := object.Object.(type) {
		case *corev1.Service:
			services++
			assert.Len(t, o.Spec.ClusterIPs, 2)
		case *corev1.Node:
			nodes[o.Name] = o.Labels[corev1.LabelTopologyZone]
		case *discoveryv1.EndpointSlice:
			assert.LessOrEqual(t, len(o.Endpoints), 100)
			for _, ep := range o.Endpoints {
				assert.True(t, *ep.Conditions.Ready)
				assert.Equal(t, o.AddressType == discoveryv1.AddressTypeIPv6, strings.Contains(ep.Addresses[0], ":"))
				perService[o.Labels[discoveryv1.LabelServiceName]+" "+string(o.AddressType)]++
			}
		}
	}
	assert.Equal(t, 7, services)
	assert.Equal(t, map[string]string{"n1": "z1", "n2": "z2", "n3": "z1", "n4": "z2"}, nodes)
	assert.Len(t, perService, 14)
	for name, n := range perService {
		assert.Equal(t, 150, n, name)
	}
}

func TestNegativeZonesAreNone(t *testing.T) {
	c := newCluster(t, Options{Zones: -1})
	for range 300 {
		c.Step()
	}
	assert.NotContains(t, text(t, c.Objects()), `"zone`)
	assert.NotContains(t, text(t, c.Objects()), corev1.LabelTopologyZone)
	assert.Contains(t, text(t, newCluster(t, Options{}).Objects()), corev1.LabelTopologyZone)
}

func TestBigClustersRunOutOfNodePorts(t *testing.T) {
	nodePorts := map[int32]string{}
	for _, object := range newCluster(t, Options{Services: 20000, Endpoints: 1}).Objects() {
		if svc, ok := object.Object.(*corev1.Service); ok && svc.Spec.Ports[0].NodePort != 0 {
			number := svc.Spec.Ports[0].NodePort
			require.Empty(t, nodePorts[number], "node port %d of %s", number, svc.Name)
			require.True(t, number >= 30000 && number <= 32767, "node port %d", number)
			nodePorts[number] = svc.Name
		}
	}
	assert.Greater(t, len(nodePorts), 500)
}

func TestTheSameSeedIsTheSameCluster(t *testing.T) {
	life := func(seed uint64) (steps []string, end string) {
		c := newCluster(t, Options{Seed: seed})
		for range 500 {
			s := c.Step()
			steps = append(steps, s.What+"\n"+text(t, s.Changes))
		}
		return steps, text(t, c.Objects())
	}
	steps, end := life(1)
	again, endAgain := life(1)
	assert.Equal(t, steps, again)
	assert.Equal(t, end, endAgain)
	other, _ := life(2)
	assert.NotEqual(t, steps, other)
}

// key identifies an object, or says what a change does to it.
func key(object metav1.Object) string { return fmt.Sprintf("%T %s", object, object.GetName()) }

// Whoever follows the steps knows what is in the cluster.
func TestStepsLeadToTheObjects(t *testing.T) {
	for seed := range uint64(3) {
		for name, opts := range map[string]Options{
			"single-stack": {Seed: seed},
			"dual-stack":   {Seed: seed, DualStack: true, Services: 5},
			"big slices":   {Seed: seed, Services: 2, Endpoints: 120},
			"no zones":     {Seed: seed, Zones: -1},
			"one service":  {Seed: seed, Services: 1, Endpoints: 1, Nodes: 1},
		} {
			c := newCluster(t, opts)
			known := map[string]string{}
			for _, object := range c.Objects() {
				known[key(object.Object)] = text(t, object.Object)
			}
			for range 400 {
				s := c.Step()
				require.NotEmpty(t, s.What)
				require.NotEmpty(t, s.Changes)
				for _, change := range s.Changes {
					k := key(change.Object)
					if change.Deleted {
						require.Contains(t, known, k, "%s: seed %d: %s", name, seed, s.What)
						delete(known, k)
						continue
					}
					now := text(t, change.Object)
					require.NotEqual(t, known[k], now, "%s: seed %d: %s: %s is the same", name, seed, s.What, k)
					known[k] = now
				}
			}
			want := map[string]string{}
			for _, object := range c.Objects() {
				want[key(object.Object)] = text(t, object.Object)
			}
			require.Equal(t, want, known, "%s: seed %d", name, seed)
		}
	}
}

func TestEverythingHappens(t *testing.T) {
	c := newCluster(t, Options{Nodes: 3})
	happened := map[string]int{}
	name := regexp.MustCompile(`svc-[0-9a-z-]+|\b[nz]?\d+\b|\[[^\]]*\]`)
	for range 3000 {
		happened[name.ReplaceAllString(c.Step().What, "*")]++
	}
	for _, what := range []string{
		"* becomes ready", "* serves no more", "* is gone", "* on * starts, * on * drains", "* is scaled from * to *",
		"* is not ready",
		"slice * of * is touched", "* moves from slice * to slice *", "* is created", "* is deleted",
		"* moves to zone *",
		"*: UDP port: true", "*: UDP port: false", "*: node port *", "*: external IPs *", "*: VIPs * for *",
		"*: affinity * s",
		"*: internal policy Local: true", "*: internal policy Local: false", "*: external policy Local: true",
		"*: external policy Local: false",
		"*: hints by zone", "*: hints by node", "*: hints by nothing",
	} {
		assert.Positive(t, happened[what], "%q does not happen: %v", what, happened)
		delete(happened, what)
	}
	assert.Empty(t, happened, "the list of what happens is complete")
}

// requireConsistent holds a cluster to what is always true of it.
func requireConsistent(t *testing.T, c *Cluster) {
	t.Helper()
	places := map[netip.Addr]*pod{}
	used := map[*node]int{}
	unstable := map[*pod]bool{}
	for _, p := range c.unstable {
		require.False(t, unstable[p], "%s is there twice", p.name)
		unstable[p] = true
	}
	for _, s := range c.services {
		require.NotEmpty(t, s.groups, "a service always has a slice")
		for _, g := range s.groups {
			require.False(t, len(g.pods) == 0 && len(s.groups) > 1, "an empty slice is deleted")
			for _, p := range g.pods {
				require.Same(t, g, p.group)
				require.Equal(t, p.phase != ready, unstable[p], "a pod goes on unless it is ready")
				used[p.node]++
				for _, ip := range p.ips {
					require.Nil(t, places[ip], "%v is that of two pods", ip)
					places[ip] = p
				}
			}
		}
		if svc := s.object().(*corev1.Service); svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			require.True(t, s.external(), "an API server would refuse the policy")
		}
	}
	for _, n := range c.nodes {
		require.Equal(t, n.used, used[n]+len(n.free), "places on %s are used or free", n.Name)
	}
	for _, ip := range c.Pods() {
		require.Contains(t, []phase{ready, draining}, places[ip].phase)
		delete(places, ip)
	}
	for _, p := range places {
		require.NotContains(t, []phase{ready, draining}, p.phase)
	}
}

func TestClustersAreConsistent(t *testing.T) {
	c := newCluster(t, Options{Services: 4, Endpoints: 4, DualStack: true})
	names := map[string]bool{}
	var scaledToNothing, many bool
	for range 2000 {
		c.Step()
		requireConsistent(t, c)
		for _, s := range c.services {
			total := 0
			for _, g := range s.groups {
				for _, p := range g.pods {
					names[p.name] = true
					if p.phase <= ready {
						total++
					}
				}
			}
			require.LessOrEqual(t, total, 8)
			scaledToNothing, many = scaledToNothing || total == 0, many || total > 6
		}
		require.InDelta(t, 4, len(c.services), 1)
	}
	assert.True(t, scaledToNothing)
	assert.True(t, many)
	assert.Greater(t, len(names), 100, "pods roll")
	assert.NotEmpty(t, c.Pods())
}

func TestTopologyOfTheCallersOwn(t *testing.T) {
	addrs := func(list ...string) []netip.Addr {
		var all []netip.Addr
		for _, text := range list {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	c := newCluster(t, Options{Services: 3, Endpoints: 5, Topology: []Node{
		{Name: "here", Zone: "a", IPs: addrs("192.0.2.1"),
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.16/28")},
			Pods:     [][]netip.Addr{addrs("192.0.2.17"), addrs("192.0.2.18")}},
		{Name: "there", Pods: [][]netip.Addr{addrs("192.0.2.33"), addrs("192.0.2.34")}},
		{Name: "nowhere"},
	}})
	node := c.Objects()[1].Object.(*corev1.Node)
	assert.Equal(t, "here", node.Name)
	assert.Equal(t, []string{"192.0.2.16/28"}, node.Spec.PodCIDRs)
	assert.Equal(t, "192.0.2.1", node.Status.Addresses[0].Address)
	assert.Equal(t, "a", node.Labels[corev1.LabelTopologyZone])
	all := addrs("192.0.2.17", "192.0.2.18", "192.0.2.33", "192.0.2.34")
	assert.ElementsMatch(t, all, c.Pods())
	names := map[string]bool{}
	for range 1000 {
		c.Step()
		requireConsistent(t, c)
		live := c.Pods()
		require.Subset(t, all, live)
		for _, s := range c.services {
			for _, g := range s.groups {
				for _, p := range g.pods {
					names[p.name] = true
				}
			}
		}
		require.Equal(t, "a", c.nodes[0].Zone, "there is no other zone")
	}
	assert.Greater(t, len(names), 50, "places are used again")
}

func TestOptionsThatCannotBe(t *testing.T) {
	tests := []struct {
		name string
		opts Options
		want string
	}{
		{"less than nothing", Options{Services: -1, Endpoints: -1, Nodes: -1},
			"Services is -1, want 0 to 131072\nEndpoints is -1, want 0 to 32768\nNodes is -1, want 0 to 16384"},
		{"too many services", Options{Services: 1 << 18}, "Services is 262144"},
		{"too many pods", Options{Services: 1 << 17, Endpoints: 20},
			"there are not enough addresses for 131072 services with 20 endpoints"},
		{"a node without a name", Options{Topology: []Node{{}}}, "node 1 of Topology has no name"},
		{"a pod without an address", Options{Topology: []Node{{Name: "n", Pods: [][]netip.Addr{{}}}}},
			"node n of Topology: a pod cannot have the addresses []"},
		{"a pod without an address of a family",
			Options{DualStack: true,
				Topology: []Node{{Name: "n", Pods: [][]netip.Addr{{netip.MustParseAddr("10.0.0.1")}}}}},
			"a pod cannot have the addresses [10.0.0.1]"},
		{"a pod with addresses in the wrong order",
			Options{DualStack: true, Topology: []Node{{Name: "n", Pods: [][]netip.Addr{
				{netip.MustParseAddr("fd44::1"), netip.MustParseAddr("10.0.0.1")}}}}},
			"a pod cannot have the addresses [fd44::1 10.0.0.1]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := New(tt.opts)
			require.ErrorContains(t, err, tt.want)
			assert.True(t, strings.HasPrefix(err.Error(), "churn: "))
			assert.Nil(t, c)
		})
	}
}

func TestTheBiggestClustersHaveAddresses(t *testing.T) {
	for _, opts := range []Options{{Services: 30000, Endpoints: 10, Nodes: 5000},
		{Services: 2000, Endpoints: 500, Nodes: 1}} {
		opts, err := opts.withDefaults()
		require.NoError(t, err)
		last := opts.defaultNode(opts.Nodes - 1)
		cidr := last.PodCIDRs[0]
		assert.Equal(t, cidr, cidr.Masked())
		for _, place := range []int{0, opts.podsPerNode() - 3} {
			assert.True(t, cidr.Contains(opts.podIPs(opts.Nodes-1, place)[0]))
		}
		assert.True(t, netip.MustParsePrefix("10.128.0.0/9").Contains(cidr.Addr()))
		assert.GreaterOrEqual(t, opts.podsPerNode()*opts.Nodes, 4*opts.Services*opts.Endpoints)
	}
}

// A step costs the same in a small and in a big cluster.
func BenchmarkStep(b *testing.B) {
	for _, services := range []int{100, 10000} {
		b.Run(fmt.Sprintf("%dx10", services), func(b *testing.B) {
			c := newCluster(b, Options{Services: services, Endpoints: 10, Nodes: 100, Zones: 3})
			b.ReportAllocs()
			for b.Loop() {
				c.Step()
			}
		})
	}
}
