package brain

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// BenchmarkChangeBesideServicesOfANode is how long it takes until a node has the change of one of its endpoints, beside
// other Services with an endpoint on it.
func BenchmarkChangeBesideServicesOfANode(b *testing.B) {
	for _, services := range []int{10, 100, 1_000, 10_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) { benchmarkOwnChange(b, services) })
	}
}

func benchmarkOwnChange(b *testing.B, services int) {
	c := newCluster(kube.Node("node-0").Zone("zone-0").PodCIDR("10.244.0.0/24").Build())
	c.change(smallestExtent().onOneNode("s", services)...)
	server := serve(b, Options{Source: c, limits: limits{minInterval: -1}}, socket(b))
	stream := rawStream(b, server.target, &remotev1.Hello{Node: "node-0"})
	take := func() {
		batch := receiveBatch(b, stream)
		sendAck(b, stream, batch[len(batch)-1].Sync.Revision)
	}
	take()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.change(watch.Change{Object: kube.EndpointSlice("default/s0").Port("http", 8080).
			Endpoint(fmt.Sprintf("10.7.%d.%d", 1+i/250%250, i%250)).OnNode("node-0").Build()})
		take()
	}
}

// BenchmarkPartsOfManyNodes is the time and the memory for the parts of 5,000 nodes: those of a class that is new, then
// those of a change on each node.
func BenchmarkPartsOfManyNodes(b *testing.B) {
	for _, each := range []int{30, 100} {
		b.Run(fmt.Sprint(each), func(b *testing.B) { benchmarkManyParts(b, 5000, each) })
	}
}

func benchmarkManyParts(b *testing.B, nodes, each int) {
	const perService = 100
	s, err := New(quiet(b), Options{Source: newCluster()})
	if err != nil {
		b.Fatal(err)
	}
	h := serverHandler{s}
	services := nodes * each / perService
	slice := func(service, ready int) watch.Change {
		e := kube.EndpointSlice(fmt.Sprint("default/s", service)).Port("http", 8080)
		for i := range ready {
			// Service 0 is on the nodes 0, 50, 100 ..., Service 1 on 1, 51, 101 ...
			node := (service + i*(nodes/perService)) % nodes
			e.Endpoint(fmt.Sprintf("10.%d.%d.%d", node>>8, node&255, service%250+1)).OnNode(fmt.Sprint("node-", node))
		}
		return watch.Change{Object: e.Build()}
	}
	for i := range services {
		h.Update(watch.Change{Object: kube.Service(fmt.Sprint("default/s", i)).Port("http", 80).Build()},
			slice(i, perService))
	}
	h.Synced()
	key := localstate.Class{Zone: ""}
	var created, changed time.Duration
	var held int
	var collected time.Duration
	for b.Loop() {
		delete(s.classes, key)
		before := testkit.LiveHeap()
		begin := time.Now()
		if err := s.makeClass(b.Context(), key); err != nil {
			b.Fatal(err)
		}
		created += time.Since(begin)
		s.publish(b.Context())
		held = testkit.LiveHeap() - before
		begin = time.Now()
		runtime.GC()
		collected += time.Since(begin)
		begin = time.Now()
		for i := range nodes / perService { // each node loses an endpoint, and gets it again
			for _, ready := range []int{0, perService} {
				h.Update(slice(i, ready))
				s.publish(b.Context())
			}
		}
		changed += time.Since(begin)
	}
	b.ReportMetric(float64(created.Milliseconds())/float64(b.N), "create-ms")
	b.ReportMetric(float64(changed.Milliseconds())/float64(b.N), "change-ms")
	b.ReportMetric(float64(collected.Milliseconds())/float64(b.N), "gc-ms")
	b.ReportMetric(float64(held)/(1<<20), "held-MB")
	b.ReportMetric(0, "ns/op")
	runtime.KeepAlive(s)
}
