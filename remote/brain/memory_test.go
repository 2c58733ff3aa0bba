package brain

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// The manifest of cmd/brain limits the memory of a brain, and reckons with 32 MB for a class at 100,000 endpoints.
func TestAClassTakesLittleMemory(t *testing.T) {
	_, each := memoryOfClasses(t, 1000, 10)
	assert.LessOrEqual(t, each/(1000*10), 320.)
}

// BenchmarkMemoryOfClasses is what a server keeps of a cluster, without connections: of its objects and the class
// without a zone, and of each class of a zone. Hints name the zones, but not those of most endpoints, so every class
// has nearly all of them, which is the most that a class takes.
func BenchmarkMemoryOfClasses(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{1000, 10}, {10000, 10}, {1000, 100}, {50000, 1}} {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			for b.Loop() {
				base, each := memoryOfClasses(b, size.services, size.endpoints)
				n := float64(size.services * size.endpoints)
				b.ReportMetric(base/(1<<20), "MiB")
				b.ReportMetric(each/(1<<20), "MiB/class")
				b.ReportMetric(each/n, "B/endpoint/class")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// memoryOfClasses returns the bytes that a server keeps of a cluster with a class without a zone, and those of each
// other class.
func memoryOfClasses(t testing.TB, services, endpoints int) (base, each float64) {
	const nodes, classes = 500, 8
	empty := testkit.LiveHeap()
	s, err := New(quiet(t), Options{Source: newCluster()})
	require.NoError(t, err)
	h := serverHandler{s}
	var zones []string
	for i := range nodes {
		zone := fmt.Sprint("rack-", i%classes)
		if i < classes {
			zones = append(zones, zone)
		}
		h.Update(watch.Change{Object: kube.Node(fmt.Sprint("n", i)).Zone(zone).Build()})
	}
	h.Update(watch.Change{Object: kube.Node("plain").Build()}, watch.Change{Object: naming(zones...)})
	for i := range services {
		e := kube.EndpointSlice(fmt.Sprint("default/s", i)).Port("http", 8080)
		for n := range endpoints {
			at := i*endpoints + n
			e.Endpoint(fmt.Sprintf("10.%d.%d.%d", 1+at>>16, at>>8&255, at&255)).OnNode(fmt.Sprint("n", at%nodes))
		}
		h.Update(watch.Change{Object: kube.Service(fmt.Sprint("default/s", i)).
			ClusterIP(fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)).Port("http", 80).Build()}, watch.Change{Object: e.Build()})
	}
	h.Synced()
	join := func(node string) {
		c := &client{server: &s.common, node: node, ctx: t.Context(), sends: true}
		require.NoError(t, s.join(c, localstate.Options{}))
		_, _, _, err := c.newest()
		require.NoError(t, err)
		s.publish(t.Context())
	}
	join("plain")
	one := testkit.LiveHeap()
	for i := range classes {
		join(fmt.Sprint("n", i))
	}
	all := testkit.LiveHeap()
	require.Len(t, s.classes, 1+classes)
	return float64(one - empty), float64(all-one) / classes
}
