package main

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// database is what the program writes to.
type database map[string]map[model.ServiceName]string

func (d database) write(where string, service model.ServiceName, rules string) {
	if d[where] == nil {
		d[where] = map[model.ServiceName]string{}
	}
	if d[where][service] = rules; rules == "" {
		delete(d[where], service)
	}
}

// of returns what a node does with a service: its own load balancers, or those of its zone.
func (d database) of(node, zone string, service model.ServiceName) string {
	if own := d[node][service]; own != "" {
		return own
	}
	return d[`zone "`+zone+`"`][service]
}

func newCluster(t *testing.T, d database) *cluster {
	base, err := localstate.New(t.Context(), localstate.Options{}, localstate.ClusterOptions{})
	require.NoError(t, err)
	return &cluster{base: base, nodes: map[string]*localstate.NodeTracker{}, classes: map[localstate.Class]*class{},
		classOf: map[string]*class{}, written: map[string]map[model.ServiceName]string{}, write: d.write}
}

// TestEveryNodeHasItsLoadBalancers compares what is computed for all nodes with what each would compute for itself.
func TestEveryNodeHasItsLoadBalancers(t *testing.T) {
	d := database{}
	c := newCluster(t, d)
	slice := func() *kube.EndpointSliceBuilder {
		return kube.EndpointSlice("default/web").Port("http", 8080).
			Endpoint("10.244.1.1").OnNode("n1").ForZones("a").Endpoint("10.244.2.1").OnNode("n2").ForZones("b").
			Endpoint("10.244.3.1").OnNode("n3").ForZones("b")
	}
	node := func(name, zone string) metav1.Object { return kube.Node(name).Zone(zone).Build() }
	service := func() *kube.ServiceBuilder {
		return kube.Service("default/web").ClusterIP("10.96.0.1").Port("http", 80)
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
			{Object: service().ExternalIP("198.51.100.1").ExternalLocal().Build()}}},
		{"hints for nodes", []watch.Change{{Object: kube.EndpointSlice("default/web").Port("http", 8080).
			Endpoint("10.244.1.1").OnNode("n1").ForNodes("n2").Endpoint("10.244.2.1").OnNode("n2").ForNodes("n3").
			Build()}}},
		{"a node moves", []watch.Change{{Object: slice().Build()}, {Object: node("n3", "a")}}},
		{"a node goes", []watch.Change{{Object: node("n2", "b"), Deleted: true}}},
		{"and comes back elsewhere", []watch.Change{{Object: node("n2", "a")}}},
		{"the service goes", []watch.Change{{Object: service().Build(), Deleted: true}}},
	} {
		c.Update(step.changes...)
		if step.name == "before everything is known" {
			require.Empty(t, d)
			c.Synced()
		}
		for _, change := range step.changes {
			key := change.Object.GetNamespace() + "/" + change.Object.GetName()
			if objects[key] = change.Object; change.Deleted {
				delete(objects, key)
			}
			if change.Object.GetNamespace() == "" {
				zones[change.Object.GetName()] = change.Object.GetLabels()["topology.kubernetes.io/zone"]
			}
		}
		used := map[string]bool{}
		for name, zone := range zones {
			used[zone] = used[zone] || objects["/"+name] != nil
		}
		for zone, used := range used {
			_, exists := c.classes[localstate.Class{Zone: zone}]
			assert.Equal(t, used, exists, "%s: zone %s has nodes", step.name, zone)
			assert.True(t, used || len(d[`zone "`+zone+`"`]) == 0, "%s: nothing is left of zone %s", step.name, zone)
		}
		for _, name := range []string{"n1", "n2", "n3"} {
			if objects["/"+name] == nil {
				assert.Empty(t, d[name], "%s: nothing is left of %s", step.name, name)
				continue
			}
			alone, err := localstate.New(t.Context(), localstate.Options{NodeName: name}, localstate.ClusterOptions{})
			require.NoError(t, err)
			for _, object := range objects {
				_, err := alone.Apply(object, false)
				require.NoError(t, err)
			}
			var snapshot *sink.Snapshot
			full := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
				snapshot = s
				return nil
			})
			alone.Flush(full)
			require.NoError(t, full.Sync(t.Context()))
			web := model.ServiceName{Namespace: "default", Name: "web"}
			want := rules(snapshot.Service(web), nil, localstate.Class{})
			assert.Equal(t, want, d.of(name, zones[name], web), "%s: %s", step.name, name)
		}
	}
}

// once ends the program after it has written for the first time: what belongs together is written before it ends.
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
		"zone \"zone-a\": monitoring/agent\n  10.96.30.1:9100/TCP -> Drop\n",
		"node-1: monitoring/agent\n  10.96.30.1:9100/TCP -> 10.1.1.41:9100\n",
		"node-2: monitoring/agent\n  10.96.30.1:9100/TCP -> 10.1.2.41:9100\n",
	} {
		assert.Contains(t, out.String(), want)
	}
	require.ErrorContains(t, run(t.Context(), nil, out), "--kubeconfig is required")
}
