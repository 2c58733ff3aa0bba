package brain

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// BenchmarkChangeInAHugeService is what a server does when one endpoint of a service is replaced by one on the next
// node, until what it sends is encoded, for two classes of nodes: the zones. Without Nodes, no node has a zone.
func BenchmarkChangeInAHugeService(b *testing.B) {
	for _, c := range []struct{ endpoints, nodes int }{
		{1_000, 0}, {50_000, 0}, {1_000, 100}, {10_000, 100}, {50_000, 100}, {50_000, 1_000},
	} {
		name := fmt.Sprint(c.endpoints)
		if c.nodes > 0 {
			name = fmt.Sprintf("%dOn%dNodes", c.endpoints, c.nodes)
		}
		b.Run(name, func(b *testing.B) { benchmarkChange(b, c.endpoints, c.nodes) })
	}
}

func benchmarkChange(b *testing.B, endpoints, nodes int) {
	s, err := New(quiet(b), Options{Source: newCluster()})
	if err != nil {
		b.Fatal(err)
	}
	h := serverHandler{s}
	update := func(o metav1.Object) { h.Update(watch.Change{Object: o}) }
	for n := range nodes {
		update(kube.Node(fmt.Sprint("n", n)).Zone([]string{"a", "b"}[n%2]).Build())
	}
	slice := func(i, last int) *discoveryv1.EndpointSlice {
		e := kube.EndpointSlice("default/huge").Port("http", 8080)
		for n := range 100 {
			on := n
			if nodes > 0 {
				on = (100*i + n) % nodes
			}
			if n < 99 {
				e.Endpoint(fmt.Sprintf("10.%d.%d.%d", 1+i/250, i%250, n)).OnNode(fmt.Sprint("n", on))
				continue
			}
			if nodes > 0 {
				on = last % nodes
			}
			e.Endpoint(fmt.Sprintf("10.%d.%d.%d", 1+i/250, i%250, last)).OnNode(fmt.Sprint("n", on))
		}
		o := e.Build()
		o.Name = fmt.Sprint("huge-", i)
		return o
	}
	update(kube.Service("default/huge").ClusterIP("10.96.0.1").Port("http", 80).Build())
	for i := range endpoints / 100 {
		update(slice(i, 100))
	}
	h.Synced()
	var classes []*group
	for _, zone := range []string{"a", "b"} {
		key := localstate.Class{Zone: zone}
		if err := s.makeClass(b.Context(), key); err != nil {
			b.Fatal(err)
		}
		classes = append(classes, s.classes[key])
	}
	s.publish(b.Context())
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		o := slice(endpoints/200, 101+i%100)
		before := []*version{classes[0].current, classes[1].current}
		b.StartTimer()
		update(o)
		s.publish(b.Context())
		for i, c := range classes {
			if c.current == before[i] {
				b.Fatal("nothing changed")
			}
			c.batches.difference(b.Context(), before[i], c.current)
		}
	}
	b.ReportMetric(float64(classes[0].kept)/float64(max(1, len(classes[0].recent))), "kept-B/version")
}
