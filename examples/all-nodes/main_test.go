package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// TestEveryNodeHasItsLoadBalancers compares how the switch and the router of each node treat connections, according to
// the load balancers that are computed for all nodes, with the state that is computed for the node alone. After each
// single write a connection is treated as before the step, or as after it.
func TestEveryNodeHasItsLoadBalancers(t *testing.T) {
	db := newOVN(t)
	c, err := newCluster(t.Context(), db)
	require.NoError(t, err)
	slice := func() *kube.EndpointSliceBuilder {
		return kube.EndpointSlice("default/web").Port("http", 8080).
			Endpoint("10.244.1.1").Pod("a").OnNode("n1").ForZones("a").
			Endpoint("10.244.2.1").Pod("b").OnNode("n2").ForZones("b").Endpoint("10.244.3.1").OnNode("n3").ForZones("b")
	}
	slice6 := kube.EndpointSlice("default/web").Name("web-6").AddressType(discoveryv1.AddressTypeIPv6).Port("http", 8080).
		Endpoint("fd01:1::1").OnNode("n1").Endpoint("fd01:2::1").OnNode("n2")
	ips := map[string][]string{"n1": {"192.0.2.1", "2001:db8::1"}, "n2": {"192.0.2.2", "198.51.100.2"},
		"n3": {"192.0.2.3"}}
	node := func(name, zone string) metav1.Object {
		return kube.Node(name).Zone(zone).InternalIP(ips[name]...).Build()
	}
	service := func() *kube.ServiceBuilder {
		return kube.Service("default/web").ClusterIP("10.96.0.1").Port("http", 80)
	}
	public := func() *kube.ServiceBuilder {
		return service().ClusterIP("10.96.0.1", "fd00:96::1").NodePort(30080).ExternalIP("203.0.113.1").
			LoadBalancerIP("203.0.113.2", "2001:db8:e::2")
	}
	zones := map[string]string{"n1": "a", "n2": "b", "n3": "b"}
	objects := map[string]metav1.Object{}
	for _, step := range []struct {
		name    string
		changes []watch.Change
	}{
		{"before everything is known", []watch.Change{{Object: node("n1", "a")}, {Object: node("n2", "b")},
			{Object: node("n3", "b")}, {Object: slice().Build()}}},
		{"by zone", []watch.Change{{Object: service().Build()}}},
		{"each node has its own", []watch.Change{{Object: service().InternalLocal().Build()}}},
		{"only outside traffic stays on the node", []watch.Change{
			{Object: service().ExternalIP("203.0.113.1").ExternalLocal().Build()}}},
		{"hints for nodes", []watch.Change{{Object: kube.EndpointSlice("default/web").Port("http", 8080).
			Endpoint("10.244.1.1").OnNode("n1").ForNodes("n2").Endpoint("10.244.2.1").OnNode("n2").ForNodes("n3").
			Build()}}},
		{"node ports and load balancers", []watch.Change{{Object: public().Build()}, {Object: slice6.Build()}}},
		{"with affinity", []watch.Change{{Object: public().Affinity(600).Build()}}},
		{"with a local policy and health checks", []watch.Change{
			{Object: public().ExternalLocal().HealthCheckNodePort(31000).Build()}}},
		{"another service of other protocols", []watch.Change{
			{Object: kube.Service("default/dns").ClusterIP("10.96.0.53").UDPPort("dns", 53).NodePort(30053).Port("tcp", 53).
				Build()},
			{Object: kube.EndpointSlice("default/dns").UDPPort("dns", 5353).Port("tcp", 5353).Endpoint("10.244.1.53").
				OnNode("n1").Terminating().Endpoint("10.244.3.53").OnNode("n3").Terminating().Build()}}},
		{"nothing serves", []watch.Change{{Object: kube.EndpointSlice("default/dns").Build()}}},
		{"one family has endpoints, but not on each node", []watch.Change{{Object: slice6.Build(), Deleted: true},
			{Object: kube.EndpointSlice("default/web").Port("http", 8080).Endpoint("10.244.1.1").OnNode("n1").Build()},
			{Object: public().InternalLocal().Build()}}},
		{"a node that had its own moves to a group that has the same", []watch.Change{{Object: kube.EndpointSlice(
			"default/web").Port("http", 8080).Endpoint("10.244.1.1").OnNode("n1").Endpoint("10.244.3.1").OnNode("n3").
			Build()}, {Object: public().InternalLocal().Build()}}},
		{"and its endpoints go when it moves", []watch.Change{{Object: slice().Build()}, {Object: service().Build()},
			{Object: node("n3", "a")}}},
		{"it moves alone, with affinity", []watch.Change{{Object: public().Affinity(600).Build()}}},
		{"back", []watch.Change{{Object: node("n3", "b")}}},
		{"its address changes", []watch.Change{{Object: kube.Node("n3").Zone("b").InternalIP("192.0.2.33").Build()}}},
		{"there are two nodes with IPv6", []watch.Change{{Object: slice6.Build()}, {Object: kube.Node("n2").Zone("b").
			InternalIP("192.0.2.2", "2001:db8::2").Build()}, {Object: public().Build()}}},
		{"a node moves", []watch.Change{{Object: slice().Build()}, {Object: node("n3", "a")}, {Object: node("n2", "b")}}},
		{"a node gets more addresses than the others", []watch.Change{{Object: kube.Node("n3").Zone("a").
			InternalIP("192.0.2.3", "198.51.100.3", "198.51.100.4").Build()}}},
		{"and loses them", []watch.Change{{Object: node("n3", "a")}}},
		{"a node goes", []watch.Change{{Object: node("n2", "b"), Deleted: true}}},
		{"and comes back elsewhere", []watch.Change{{Object: node("n2", "a")}}},
		{"the service goes", []watch.Change{{Object: service().Build(), Deleted: true}}},
	} {
		next := maps.Clone(objects)
		for _, change := range step.changes {
			key := keyOf(change.Object)
			if next[key] = change.Object; change.Deleted {
				delete(next, key)
			}
		}
		db.eachTime = bothWays(t, db, objects, next, step.name)
		c.Update(step.changes...)
		if step.name == "before everything is known" {
			require.Empty(t, db.has)
			require.Empty(t, db.members)
			c.Synced()
		}
		for _, change := range step.changes {
			if change.Object.GetNamespace() == "" {
				name := change.Object.GetName()
				if zones[name] = change.Object.GetLabels()["topology.kubernetes.io/zone"]; change.Deleted {
					delete(zones, name)
				}
			}
		}
		objects = next
		groups := map[string]bool{}
		for name, zone := range zones {
			groups[fmt.Sprintf("zone %q", zone)] = true
			assert.Equal(t, fmt.Sprintf("zone %q", zone), db.members[name].group, "%s: %s", step.name, name)
			checkNode(t, db, name, objects, step.name)
		}
		assert.Len(t, db.members, len(zones), step.name)
		for where := range db.has {
			assert.True(t, groups[where] || zones[where] != "", "%s: nothing is left of %s", step.name, where)
		}
	}
}

func keyOf(object metav1.Object) string {
	return fmt.Sprintf("%T %s/%s", object, object.GetNamespace(), object.GetName())
}

// alone is the state of one node that is computed for it alone.
type alone struct {
	*sink.Snapshot
	rules *oracle.Oracle
}

func newAlone(t *testing.T, name string, objects map[string]metav1.Object) alone {
	state, err := localstate.New(t.Context(), nodeOptions(name), localstate.ClusterOptions{EndpointDetails: true})
	require.NoError(t, err)
	for _, object := range objects {
		_, err := state.Apply(object, false)
		require.NoError(t, err)
	}
	var a alone
	full := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		a.Snapshot = s
		return nil
	})
	state.Flush(full)
	require.NoError(t, full.Sync(t.Context()))
	a.rules, err = oracle.OfSnapshot(a.Snapshot, oracle.Config{})
	require.NoError(t, err)
	return a
}

// connection is one to a port of a service, of a node, or to one that nothing serves.
type connection struct {
	to       netip.AddrPort
	protocol model.Protocol
	at       place
}

func (a alone) connections() (all []connection) {
	for entry := range a.Services() {
		s := entry.Service
		for _, port := range s.Ports {
			destinations := []netip.AddrPort{}
			for _, ip := range slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs) {
				destinations = append(destinations, netip.AddrPortFrom(ip, port.Port))
			}
			for _, ip := range a.Node().IPs {
				destinations = append(destinations, netip.AddrPortFrom(ip, 30080), netip.AddrPortFrom(ip, 30053),
					netip.AddrPortFrom(ip, 22))
			}
			for _, to := range destinations {
				all = append(all, connection{to, port.Protocol, switches}, connection{to, port.Protocol, routers})
			}
		}
	}
	return all
}

func (a alone) connect(t *testing.T, c connection) outcome {
	want, err := expected(a.rules, c.at, c.to, c.protocol)
	require.NoError(t, err)
	return want
}

// bothWays returns a function that checks that each connection on each node that stays is treated as with the objects
// from before, or as with the next ones.
func bothWays(t *testing.T, db *ovn, before, next map[string]metav1.Object, step string) func() {
	type allowed map[connection][2]outcome
	nodes := map[string]allowed{}
	for key, object := range before {
		if _, isNode := object.(*corev1.Node); !isNode || next[key] == nil || len(db.members) == 0 {
			continue
		}
		name := object.GetName()
		nodes[name] = allowed{}
		was, is := newAlone(t, name, before), newAlone(t, name, next)
		for _, c := range append(was.connections(), is.connections()...) {
			nodes[name][c] = [2]outcome{was.connect(t, c), is.connect(t, c)}
		}
	}
	return func() {
		for name, allowed := range nodes {
			for c, outcomes := range allowed {
				got := db.connect(name, c.at, c.to, c.protocol)
				if !reflect.DeepEqual(got, outcomes[0]) && !reflect.DeepEqual(got, outcomes[1]) {
					t.Errorf("%s: meanwhile: %s: %v: %+v, want %+v", step, name, c, got, outcomes)
				}
			}
		}
	}
}

// checkNode compares connections on one node with its own state.
func checkNode(t *testing.T, db *ovn, name string, objects map[string]metav1.Object, step string) {
	a, has := newAlone(t, name, objects), db.of(name)
	for service, b := range has {
		require.NotNil(t, a.Service(service), "%s: %s has %v, which is gone", step, name, service)
		assert.Equal(t, a.Service(service).Service.HealthCheck, b.check, "%s: %s: health check", step, name)
	}
	for entry := range a.Services() {
		assert.Contains(t, has, entry.Service.Name, "%s: %s", step, name)
	}
	connections := a.connections()
	for _, c := range connections {
		assert.Equal(t, a.connect(t, c), db.connect(name, c.at, c.to, c.protocol), "%s: %s: %v", step, name, c)
	}
	if _, exists := objects["*v1.Service default/web"]; exists {
		assert.NotEmpty(t, connections)
	}
}

// once ends the program after its first writes: everything that belongs together is written before it ends.
type once struct {
	strings.Builder
	end context.CancelFunc
}

func (o *once) Write(b []byte) (int, error) {
	o.end()
	return o.Builder.Write(b)
}

func TestTheProgramPrintsWhatEachNodeDoes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := &once{end: cancel}
	require.NoError(t, run(ctx, []string{"--file", "../mock/cluster"}, out))
	for _, want := range []string{
		"zone \"zone-a\": monitoring/agent\n  TCP, everywhere\n    10.96.30.1:9100 -> none\n",
		"node-1: monitoring/agent\n  TCP, everywhere\n    10.96.30.1:9100 -> 10.1.1.41:9100 (monitoring/agent-a)\n",
		"node-2: monitoring/agent\n  TCP, everywhere\n    10.96.30.1:9100 -> 10.1.2.41:9100 (monitoring/agent-b)\n",
		"  TCP, on routers, skip_snat, template ipv4\n    ^NODE_IPv4_0:30443 -> 10.1.1.31:8443 (shop/web-a)\n",
		"  health check at port 31000: endpoints here: 1 IPv4, 1 IPv6\n",
		"node-1 is in zone \"zone-a\": map[NODE_IPv4_0:",
	} {
		assert.Contains(t, out.String(), want)
	}
	require.ErrorContains(t, run(t.Context(), nil, out), "--kubeconfig is required")
}
