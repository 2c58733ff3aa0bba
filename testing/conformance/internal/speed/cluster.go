package speed

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// mostPods is the number of pod addresses. When all are used, the one freed first is reused. The largest cluster size
// needs fewer.
const mostPods = 510_000

// largeCluster is a single-family cluster of a given size whose endpoints are replaced one by one. Its last service
// keeps its endpoints: it serves the background connection.
type largeCluster struct {
	program.Size
	family model.Family
	pods   [][]netip.Addr // by service
	next   []int          // the endpoint of each service to replace next
	made   int            // number of pods so far
	gone   []netip.Addr   // replaced pods, oldest first
}

// firstService is the index of the first cluster IP, beyond those of cases and probes.
const firstService = 2000

// slicePods is the maximum number of endpoints in an EndpointSlice, as in Kubernetes.
const slicePods = 100

func newLargeCluster(z program.Size, f model.Family) *largeCluster {
	c := &largeCluster{Size: z, family: f, pods: make([][]netip.Addr, z.Services+1), next: make([]int, z.Services+1)}
	for i := range c.pods {
		n := z.Endpoints
		if i == z.Services {
			n = min(n, 10)
		}
		for range n {
			c.pods[i] = append(c.pods[i], c.newPod())
		}
	}
	return c
}

// newPod returns an unused pod address, or the one freed first if all have been used.
func (c *largeCluster) newPod() netip.Addr {
	if c.made == mostPods {
		oldest := c.gone[0]
		c.gone = c.gone[1:]
		return oldest
	}
	c.made++
	return network.Nth(network.ManyPods(c.family), c.made)
}

func (c *largeCluster) serviceAt(i int) netip.AddrPort {
	return netip.AddrPortFrom(network.Nth(network.ClusterIPs(c.family), firstService+i), 80)
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
		b.Endpoint(pod.String()).OnNode(network.OtherNode)
	}
	return b.Build()
}

// change is the replacement of one endpoint.
type change struct {
	service  int
	pod, old netip.Addr // the new pod and the one it replaced
	object   metav1.Object
	probed   bool          // the prober looks for it
	since    time.Time     // when it was due or written
	took     time.Duration // time until a packet reached the new pod; 0: not yet
}

// replace replaces a service's next endpoint. The caller writes the object.
func (c *largeCluster) replace(i int) *change {
	at := c.next[i] % c.Endpoints
	c.next[i]++
	ch := &change{service: i, old: c.pods[i][at], pod: c.newPod()}
	c.gone = append(c.gone, ch.old)
	c.pods[i][at] = ch.pod
	ch.object = c.slice(i, at/slicePods)
	return ch
}

// sample returns up to n service indexes, evenly spaced, the last one first.
func sample(n, services int) []int {
	if n = min(n, services); n == 1 {
		return []int{0}
	}
	var s []int
	for i := range n {
		s = append(s, i*(services-1)/(n-1))
	}
	slices.Reverse(s)
	return s
}

// latency returns the percentiles of the changes that have shown.
func latency(changes []*change) report.Latency {
	var took []time.Duration
	for _, c := range changes {
		if c.took > 0 {
			took = append(took, c.took)
		}
	}
	l := report.Latency{Count: len(took)}
	if len(took) == 0 {
		return l
	}
	slices.Sort(took)
	l.P50, l.P99 = Milliseconds(took[len(took)/2]), Percentile99(took)
	n := min(len(took), 51)
	for i := range n {
		l.Quantiles = append(l.Quantiles, Milliseconds(took[i*(len(took)-1)/max(n-1, 1)]))
	}
	return l
}

// Percentile99 returns the 99th percentile of sorted durations, in milliseconds.
func Percentile99(sorted []time.Duration) float64 { return Milliseconds(sorted[len(sorted)*99/100]) }

// Milliseconds converts a duration to the unit of reports: tenths, and thousandths below one.
func Milliseconds(d time.Duration) float64 {
	unit := 100 * time.Microsecond
	if d < time.Millisecond { // a write within the process takes a few microseconds, which is not nothing
		unit = time.Microsecond
	}
	return float64(d.Round(unit)) / float64(time.Millisecond)
}
