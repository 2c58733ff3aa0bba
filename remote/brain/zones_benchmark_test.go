package brain

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// BenchmarkHintThatComesAndGoes is what a server does when a hint names a zone and goes again, once the nodes of the
// zone have moved.
func BenchmarkHintThatComesAndGoes(b *testing.B) {
	h, _ := manyZones(b, 64)
	named, gone := naming("rack-1").(*discoveryv1.EndpointSlice), naming().(*discoveryv1.EndpointSlice)
	toggle := func() {
		h.Update(watch.Change{Object: named})
		h.publish(b.Context())
		h.Update(watch.Change{Object: gone})
		h.publish(b.Context())
	}
	h.Update(watch.Change{Object: named})
	h.publish(b.Context())
	h.makeNextAwaited(b.Context())
	toggle()
	b.ReportAllocs()
	for b.Loop() {
		toggle()
	}
	b.ReportMetric(float64(len(h.classes)), "classes")
}

// BenchmarkChangeInManyZones is what a server does when one endpoint of a service is replaced, until what it sends is
// encoded, in a cluster of 10,000 endpoints whose 640 nodes are in one zone or in 64, which no hint names.
func BenchmarkChangeInManyZones(b *testing.B) {
	for _, zones := range []int{1, 64} {
		b.Run(fmt.Sprint(zones), func(b *testing.B) { benchmarkManyZones(b, zones) })
	}
}

func benchmarkManyZones(b *testing.B, zones int) {
	h, slice := manyZones(b, zones)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		before := map[*group]*version{}
		for _, g := range h.classes {
			before[g] = g.current
		}
		h.Update(slice(500, 1000+i%1000))
		h.publish(b.Context())
		for g, old := range before {
			g.batches.difference(b.Context(), old, g.current)
		}
	}
	b.ReportMetric(float64(len(h.classes)), "classes")
}

// manyZones is a server with clients in so many zones, and a function that returns the slice of a service, whose last
// endpoint goes by a number.
func manyZones(b *testing.B, zones int) (serverHandler, func(service, last int) watch.Change) {
	const nodes = 640
	s, err := New(quiet(b), Options{Source: newCluster()})
	if err != nil {
		b.Fatal(err)
	}
	h := serverHandler{s}
	node := func(i int) string { return fmt.Sprint("n", i%nodes) }
	for i := range nodes {
		h.Update(watch.Change{Object: kube.Node(node(i)).Zone(fmt.Sprint("rack-", i%zones)).Build()})
	}
	slice := func(i, last int) watch.Change {
		e := kube.EndpointSlice(fmt.Sprint("default/s", i)).Port("http", 8080)
		for n := range 9 {
			e.Endpoint(fmt.Sprintf("10.%d.%d.%d", 1+i/250, i%250, n)).OnNode(node(10*i + n))
		}
		return watch.Change{Object: e.Endpoint(fmt.Sprintf("10.200.%d.%d", last/250, last%250)).OnNode(node(last)).Build()}
	}
	for i := range 1000 {
		h.Update(watch.Change{Object: kube.Service(fmt.Sprint("default/s", i)).
			ClusterIP(fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)).Port("http", 80).Build()}, slice(i, i))
	}
	h.Synced()
	for i := range nodes { // each client has a class; none is sent anything
		c := &client{server: &s.common, node: node(i), ctx: b.Context(), sends: true}
		if err := s.join(c, localstate.Options{}); err != nil {
			b.Fatal(err)
		}
		if _, _, _, err := c.newest(); err != nil {
			b.Fatal(err)
		}
	}
	s.publish(b.Context())
	return h, slice
}
