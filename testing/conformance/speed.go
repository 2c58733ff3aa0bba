package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// Size is the size of a cluster whose speed is measured.
type Size struct {
	// Services is the number of services with one port, Endpoints that of endpoints of each, all on another node.
	Services, Endpoints int
}

// The addresses of the test network allow so many.
const (
	mostServices  = 60_000
	mostEndpoints = 500_000
)

// String returns the size as services x endpoints, like 1000x10.
func (z Size) String() string { return fmt.Sprintf("%dx%d", z.Services, z.Endpoints) }

// Validate returns what is wrong with a size: there is nothing, or more than the test network has addresses for.
func (z Size) Validate() error {
	if z.Services < 1 || z.Endpoints < 1 || z.Services > mostServices || z.Endpoints > mostEndpoints/z.Services {
		return fmt.Errorf("%v: at least 1x1, at most %d services and %d endpoints in all", z, mostServices, mostEndpoints)
	}
	return nil
}

// largeCluster is a cluster of a size, in one family, in which endpoints are replaced one after the other. The last of
// its services is for a connection in the background: its endpoints stay.
type largeCluster struct {
	Size
	family model.Family
	pods   [][]netip.Addr // of each service
	made   int            // pods so far
	turn   int            // the endpoint that is replaced next, of each service
}

// firstService is the number of the first cluster IP, behind those of cases and probes.
const firstService = 2000

// slicePods is how many endpoints an EndpointSlice has at most, as Kubernetes makes them.
const slicePods = 100

func newLargeCluster(z Size, f model.Family) *largeCluster {
	c := &largeCluster{Size: z, family: f, pods: make([][]netip.Addr, z.Services+1)}
	for i := range c.pods {
		for range z.Endpoints {
			c.pods[i] = append(c.pods[i], c.newPod())
		}
	}
	return c
}

// newPod returns a pod that there has not been for long.
func (c *largeCluster) newPod() netip.Addr {
	c.made++
	return network.Nth(network.ManyPods(c.family), 1+c.made%(mostEndpoints+10_000))
}

func (c *largeCluster) serviceAt(i int) netip.AddrPort {
	return netip.AddrPortFrom(network.Nth(clusterIPs(c.family), firstService+i), 80)
}

func serviceName(i int) string { return fmt.Sprintf("speed-%d", i) }

// objects returns all objects.
func (c *largeCluster) objects() []metav1.Object {
	var list []metav1.Object
	for i := range c.pods {
		list = append(list, kube.Service(serviceName(i)).ClusterIP(c.serviceAt(i).Addr().String()).Port("http", 80).Build())
		for first := 0; first < len(c.pods[i]); first += slicePods {
			list = append(list, c.slice(i, first/slicePods))
		}
	}
	return list
}

// slice returns one of the EndpointSlices of a service.
func (c *largeCluster) slice(i, number int) metav1.Object {
	b := kube.EndpointSlice(serviceName(i)).Name(fmt.Sprintf("%s-%d", serviceName(i), number)).
		Port("http", network.ManyPodsPort)
	pods := c.pods[i][number*slicePods:]
	for _, pod := range pods[:min(len(pods), slicePods)] {
		b.Endpoint(pod.String()).OnNode(otherNode)
	}
	return b.Build()
}

// change is one endpoint that was replaced.
type change struct {
	service int
	pod     netip.Addr // the new one
	object  metav1.Object
	written time.Time
	took    time.Duration // until a packet reached it; 0: not yet
}

// replace replaces one endpoint of a service. The caller writes the object.
func (c *largeCluster) replace(i int) *change {
	c.turn++
	place := c.turn % c.Endpoints
	c.pods[i][place] = c.newPod()
	return &change{service: i, pod: c.pods[i][place], object: c.slice(i, place/slicePods)}
}

// sample returns up to n services, evenly chosen, the last one first.
func (z Size) sample(n int) []int {
	if n = min(n, z.Services); n == 1 {
		return []int{0}
	}
	var s []int
	for i := range n {
		s = append(s, i*(z.Services-1)/(n-1))
	}
	slices.Reverse(s)
	return s
}

// latency has the percentiles of changes.
func latency(changes []*change) report.Latency {
	var took []time.Duration
	for _, c := range changes {
		if c.took > 0 {
			took = append(took, c.took)
		}
	}
	l := report.Latency{Count: len(took)}
	if len(took) > 0 {
		slices.Sort(took)
		l.P50, l.P99 = milliseconds(took[len(took)/2]), milliseconds(took[len(took)*99/100])
	}
	return l
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}
