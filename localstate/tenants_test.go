package localstate

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// The dimensions of what a tenant asks for.
const (
	nServices  = iota // Services of the tenant. Each has the following:
	nPorts            // ports of the Service, which all of its slices have, too
	nMorePorts        // ports that only the slices have
	nSlices           // groups of slices
	nCopies           // slices in each group: they list the same addresses, which they contest (S17)
	nEndpoints        // addresses in each slice
	nPairs            // further addresses, each in another pair of further slices
	nHints            // nodes that the hints of an endpoint name
	nExternals        // external IPs and VIPs of the Service; all Services contest the same ones (S59)
	nRanges           // source ranges
	numDimensions
)

// demand is how much a tenant asks for in each dimension.
type demand [numDimensions]int

func (d demand) String() string {
	names := [numDimensions]string{"services", "ports", "more ports", "slices", "copies", "endpoints", "pairs",
		"hints", "externals", "ranges"}
	var parts []string
	for i, n := range d {
		if n != smallest()[i] {
			parts = append(parts, fmt.Sprint(n, " ", names[i]))
		}
	}
	return strings.Join(parts, ", ")
}

func smallest() demand {
	return demand{nServices: 1, nPorts: 2, nMorePorts: 1, nSlices: 1, nCopies: 2, nEndpoints: 2, nHints: 1, nExternals: 2,
		nRanges: 2}
}

// doubled returns the demand with some dimensions doubled.
func (d demand) doubled(dimensions ...int) demand {
	for _, i := range dimensions {
		d[i] *= 2
	}
	return d
}

// ofService is how many items the objects of one Service have.
func (d demand) ofService() int {
	slice := 2 + d[nPorts] + d[nMorePorts] + d[nEndpoints]*(1+d[nHints])
	paired := d.paired()*(2+d[nPorts]+d[nMorePorts]) + 2*d[nPairs]*(1+d[nHints])
	return 1 + d[nPorts] + d[nExternals] + d[nRanges] + d[nSlices]*d[nCopies]*slice + paired
}

// paired is how many slices have enough pairs.
func (d demand) paired() int {
	if d[nPairs] == 0 {
		return 0
	}
	n := 2
	for n*(n-1)/2 < d[nPairs] {
		n++
	}
	return n
}

// made is how many endpoints a node gets.
func (d demand) made() int { return d[nServices] * d[nPorts] * (d[nSlices]*d[nEndpoints] + d[nPairs]) }

// service is the i-th Service. It has a health check, whose count depends on all ports of the slices (S38).
func (d demand) service(i int) *corev1.Service {
	svc := aService(fmt.Sprint("s", i), externalLocal, healthCheck(30000), typed(corev1.ServiceTypeLoadBalancer))
	svc.Spec.Ports = nil
	for j := range d[nPorts] {
		svc.Spec.Ports = append(svc.Spec.Ports, tcp(fmt.Sprintf("p%05d", j), int32(1+j)))
	}
	for j := range d[nExternals] {
		if a := netip.AddrFrom4([4]byte{203, 0, byte(j >> 8), byte(j)}).String(); j%2 == 0 {
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, a)
		} else {
			vips(a)(svc)
		}
	}
	for j := range d[nRanges] {
		svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges,
			fmt.Sprintf("198.%d.%d.0/24", 18+j>>8, j&255))
	}
	return svc
}

// slices are those of the i-th Service. Of each address the first copy is on another node, and wins the ports that all
// copies have. The others have a port of their own, and are on this node.
func (d demand) slices(i int) (list []*discoveryv1.EndpointSlice) {
	var common []discoveryv1.EndpointPort
	for j := range d[nPorts] + d[nMorePorts] {
		common = append(common, slicePortObject(fmt.Sprintf("p%05d", j), corev1.ProtocolTCP, 8080))
	}
	var hints []discoveryv1.ForNode
	for j := range d[nHints] {
		hints = append(hints, discoveryv1.ForNode{Name: fmt.Sprint("node-", j)})
	}
	for s := range d[nSlices] {
		for c := range d[nCopies] {
			slice := aSlice(fmt.Sprintf("s%d-%05d-%05d", i, s, c), ofService(fmt.Sprint("s", i)))
			slice.Ports, slice.Endpoints = common, make([]discoveryv1.Endpoint, d[nEndpoints])
			node := other
			if c > 0 {
				own := slicePortObject(fmt.Sprint("z", c), corev1.ProtocolTCP, 9090)
				slice.Ports = append(common[:len(common):len(common)], own)
				node = me
			}
			for e := range slice.Endpoints {
				n := s*d[nEndpoints] + e
				slice.Endpoints[e] = discoveryv1.Endpoint{
					Addresses: []string{netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}).String()},
					NodeName:  &node, Hints: &discoveryv1.EndpointHints{ForNodes: hints}}
			}
			list = append(list, slice)
		}
	}
	return append(list, d.pairs(i, common, hints)...)
}

// pairs are slices of the i-th Service, each with a port of its own. Each address is in another two of them, of which
// the first is on another node.
func (d demand) pairs(i int, common []discoveryv1.EndpointPort,
	hints []discoveryv1.ForNode) (list []*discoveryv1.EndpointSlice) {
	add := func(slice *discoveryv1.EndpointSlice, n int, node string) {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{netip.AddrFrom4([4]byte{11, byte(n >> 16), byte(n >> 8), byte(n)}).String()},
			NodeName:  &node, Hints: &discoveryv1.EndpointHints{ForNodes: hints}})
	}
	n := 0
	for p := range d.paired() {
		slice := aSlice(fmt.Sprintf("s%d-pairs-%05d", i, p), ofService(fmt.Sprint("s", i)))
		own := slicePortObject(fmt.Sprintf("y%05d", p), corev1.ProtocolTCP, 9090)
		slice.Ports = append(common[:len(common):len(common)], own)
		for first := 0; first < p && n < d[nPairs]; first++ {
			add(list[first], n, other)
			add(slice, n, me)
			n++
		}
		list = append(list, slice)
	}
	return list
}

// work is counted work.
type work struct {
	calls int
	testkit.Work
}

// count counts the calls of a receiver, and measures.
func (n *null) count(f func()) work {
	calls := n.calls
	w := testkit.Measure(f)
	return work{n.calls - calls, w}
}

// step is something that a tenant does, and what it costs.
type step struct {
	name string
	work
	linear int // the number of items of objects, and of endpoints, in which the work has to be linear
}

// tenantSteps has a tenant do everything, beside a bystander whose changes have to cost what they cost without it.
func tenantSteps(t *testing.T, d demand, limits EndpointLimits) (steps []step) {
	state, err := New(klog.NewContext(t.Context(), klog.Logger{}), Options{NodeName: me},
		ClusterOptions{EndpointLimits: limits})
	require.NoError(t, err)
	receiver := &null{}
	apply := func(deleted bool, objects ...metav1.Object) {
		for _, object := range objects {
			_, err := state.Apply(object, deleted)
			require.NoError(t, err)
		}
	}
	bystander, bystanderSlice := aService("bystander"), aSlice("bystander-1", ofService("bystander"))
	for i := range 100 {
		ep(fmt.Sprint("10.250.0.", i))(bystanderSlice)
	}
	apply(false, bystander, bystanderSlice)
	state.Flush(receiver)
	change := func() work {
		once := func(n int) {
			bystanderSlice.Endpoints[0].Addresses = []string{fmt.Sprint("10.250.1.", n)}
			apply(false, bystanderSlice)
			state.Flush(receiver)
		}
		once(100) // fills buffers that the last step has emptied
		return receiver.count(func() {
			for n := range 8 {
				once(n)
			}
		})
	}
	alone := change()
	do := func(name string, linear int, f func()) {
		w := receiver.count(func() {
			f()
			state.Flush(receiver)
		})
		steps = append(steps, step{name, w, linear})
		now := change()
		assert.Equal(t, alone.calls, now.calls, "a bystander's change after %s", name)
		assert.LessOrEqual(t, now.Bytes, alone.Bytes+8*1024, "bytes of a bystander's change after %s", name)
	}
	var objects []metav1.Object
	for i := range d[nServices] {
		objects = append(objects, d.service(i))
		for _, slice := range d.slices(i) {
			objects = append(objects, slice)
		}
	}
	service, slice := objects[0].(*corev1.Service), objects[1].(*discoveryv1.EndpointSlice)
	all, own := d[nServices]*d.ofService()+d.made(), d.ofService()
	do("coming", all, func() { apply(false, objects...) })
	var half []metav1.Object
	for i, object := range objects {
		if _, is := object.(*discoveryv1.EndpointSlice); is && i%2 == 0 {
			half = append(half, object)
		}
	}
	do("half of the slices going", all, func() { apply(true, half...) })
	do("half of the slices coming back", all, func() { apply(false, half...) })
	do("an endpoint", own, func() {
		slice.Endpoints[0].Addresses = []string{"10.251.0.1"}
		apply(false, slice)
	})
	do("affinity on", own, func() {
		service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		apply(false, service)
	})
	do("affinity off", own, func() {
		service.Spec.SessionAffinity = corev1.ServiceAffinityNone
		apply(false, service)
	})
	do("a slice going", own+d[nPorts]*d[nEndpoints], func() { apply(true, slice) })
	do("all going", all, func() { apply(true, objects...) })
	return steps
}

// classSteps is about the State of a class of nodes, and the parts of the nodes that hints name.
func classSteps(t *testing.T, d demand, limits EndpointLimits) []step {
	base, err := New(klog.NewContext(t.Context(), klog.Logger{}), Options{}, ClusterOptions{EndpointLimits: limits})
	require.NoError(t, err)
	for i := range d[nServices] {
		base.setService(d.service(i))
		for _, slice := range d.slices(i) {
			base.setEndpointSlice(slice)
		}
	}
	base.Discard()
	var class *State
	receiver := &null{}
	made := receiver.count(func() {
		class = base.ForClass(Class{})
		class.Flush(receiver)
	})
	parts := func(of int, partsOf func(model.ServiceName, func(string) bool) map[string]*NodePart) work {
		n := 0
		w := receiver.count(func() {
			for i := range of {
				name := model.ServiceName{Namespace: namespace, Name: fmt.Sprint("s", i)}
				for _, part := range partsOf(name, func(string) bool { return true }) {
					if part != nil {
						n += len(part.Endpoints)
					}
				}
			}
		})
		w.calls = n
		return w
	}
	all := parts(d[nServices], class.NodeParts)
	changed := func(name model.ServiceName, keep func(string) bool) map[string]*NodePart {
		list, _ := class.ChangedParts(name, keep)
		return list
	}
	parts(1, changed)
	list := d.slices(0)
	half := list[:len(list)/2]
	going := receiver.count(func() {
		for _, slice := range half {
			class.deleteEndpointSlice(slice)
		}
		class.Flush(receiver)
	})
	parts(1, changed)
	back := receiver.count(func() {
		for _, slice := range half {
			class.setEndpointSlice(slice)
		}
		class.Flush(receiver)
	})
	parts(1, changed)
	slice := list[0]
	slice.Endpoints[0].Addresses = []string{"10.251.0.1"}
	class.setEndpointSlice(slice)
	class.Flush(receiver)
	one := parts(1, changed)
	items := d[nServices]*d.ofService() + d.made()
	return []step{{"a class", made, items}, {"the parts of nodes", all, items},
		{"half of the slices going", going, items}, {"half of the slices coming back", back, items},
		{"the parts that change", one, d.ofService()}}
}

// products are the pairs of dimensions that multiply each other in the objects, so that the API server has stored the
// product, or whose product a limit bounds. The work may grow with these products, and with no other.
func products() map[[2]int]string {
	const stored = "the objects have it"
	all := map[[2]int]string{
		{nSlices, nPorts}: stored, {nSlices, nMorePorts}: stored, {nSlices, nCopies}: stored, {nSlices, nEndpoints}: stored,
		{nSlices, nHints}: stored, {nCopies, nPorts}: stored, {nCopies, nMorePorts}: stored, {nCopies, nEndpoints}: stored,
		{nCopies, nHints}: stored, {nEndpoints, nHints}: stored, {nPairs, nHints}: stored,
		{nEndpoints, nPorts}: "S60", {nPairs, nPorts}: "S60",
	}
	for i := range numDimensions {
		if i != nServices {
			all[[2]int{nServices, i}] = stored
		}
	}
	return all
}

// With the State of a class, the parts of nodes have an endpoint for each hint, of which the API server allows 8.
func classProducts() map[[2]int]string {
	all := products()
	all[[2]int{nHints, nPorts}] = "8 hints for each endpoint"
	return all
}

// unlimited refuses nothing that is tried. What is beyond the limits costs no more: see the test about that.
var unlimited = EndpointLimits{Service: 1 << 24, Namespace: 1 << 26}

// costs are what tenants do, of which the cost is looked at.
func costs() []cost {
	return []cost{{"a node", tenantSteps, products()}, {"a class", classSteps, classProducts()}}
}

type cost struct {
	name     string
	steps    func(*testing.T, demand, EndpointLimits) []step
	products map[[2]int]string
}

// TestNoTenantCostsMoreThanItAsksFor doubles each dimension, and each pair of them, at sizes that show a square and a
// product. It may at most double the work, or with a pair in the table of products multiply it by four. Calls get an
// eighth as much again, because half of the slices are not half of the pairs, and bytes half as much again, because
// lists and maps grow in steps, and 256 for each item, or 384 where large buffers are not kept.
//
// A square of a few bytes shows only at thousands. So each dimension gets thousands, and in the deep tier each pair.
// The API server allows 8 hints: more than hundreds are not tried.
func TestNoTenantCostsMoreThanItAsksFor(t *testing.T) {
	const hundreds, thousands = 300, 4000
	for _, c := range costs() {
		try := func(d demand, factor, perItem int, doubled ...int) {
			t.Run(fmt.Sprintf("%s, %v", c.name, d), func(t *testing.T) {
				once, twice := c.steps(t, d, unlimited), c.steps(t, d.doubled(doubled...), unlimited)
				for i := range once {
					w, linear := twice[i].work, perItem*once[i].linear
					assert.LessOrEqual(t, w.calls, factor*once[i].calls*9/8+d[nServices], "calls: %s", once[i].name)
					assert.LessOrEqual(t, w.Bytes, factor*3/2*max(once[i].Bytes, linear), "bytes: %s", once[i].name)
				}
			})
		}
		for many := range numDimensions {
			for size, perItem := range map[int]int{hundreds: 256, thousands: 384} {
				if size == thousands && many == nHints {
					continue
				}
				d := smallest()
				d[many] = size
				try(d, 2, perItem, many)
				for some := many + 1; some < numDimensions && (size == hundreds || need.IsDeep()); some++ {
					_, straight := c.products[[2]int{many, some}]
					_, reversed := c.products[[2]int{some, many}]
					factor, d := 2, d
					if straight || reversed {
						factor = 4
					}
					d[some] = 8
					try(d, factor, perItem, many, some)
				}
			}
		}
		d := smallest()
		d[nPairs], d[nMorePorts] = hundreds, hundreds // each pair has many ports
		try(d, 2, 256, nPairs, nMorePorts)
	}
}

// Work that allocates nothing does not show in bytes: a search in a list, or a list that is moved for each element. So
// each dimension is multiplied by four, alone and beside each other one, and the processor times are compared.
func TestNoTenantTakesMoreTimeThanItAsksFor(t *testing.T) {
	need.Deep(t)
	for _, c := range costs() {
		stepsOf := func(t *testing.T, d demand) func() []testkit.Step {
			return func() (list []testkit.Step) {
				for _, s := range c.steps(t, d, unlimited) {
					list = append(list, testkit.Step{Name: s.name, Work: s.Work})
				}
				return list
			}
		}
		for many := range numDimensions {
			for some := range numDimensions {
				if many == nHints {
					continue
				}
				d := smallest()
				d[some] = 8
				if d[many] = 2000; many == nExternals || many == nRanges {
					d[many] = 8000 // they take little time each
				}
				larger := d
				larger[many] *= 4
				t.Run(fmt.Sprintf("%s, %v", c.name, d), func(t *testing.T) {
					testkit.CompareTimes(t, stepsOf(t, d), stepsOf(t, larger))
				})
			}
		}
	}
}

// Of endpoints that a limit refuses nothing is made, and nothing grows with their number (S60).
func TestATenantBeyondTheLimitsCostsNoMore(t *testing.T) {
	limits := EndpointLimits{Service: 8192, Namespace: 16384}
	for _, c := range []struct {
		services, ports, endpoints int
		most                       int // endpoints
	}{{1, 500, 50, limits.Service}, {1, 50, 500, limits.Service}, {8, 50, 100, limits.Namespace}} {
		d := smallest()
		d[nServices], d[nPorts], d[nEndpoints] = c.services, c.ports, c.endpoints
		once, twice := tenantSteps(t, d, limits), tenantSteps(t, d.doubled(nPorts, nEndpoints), limits)
		for i := range once {
			assert.LessOrEqual(t, twice[i].calls, 2*c.most+c.services, "%v: %s", d, once[i].name)
			assert.LessOrEqual(t, twice[i].Bytes, 3*max(once[i].Bytes, 256*d[nServices]*d.ofService()), "%v: %s", d,
				once[i].name)
		}
	}
}
