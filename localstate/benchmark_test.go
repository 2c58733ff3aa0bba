package localstate

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// null is a receiver that does nothing but count.
type null struct{ calls int }

func (n *null) SetService(*model.Service)        { n.calls++ }
func (n *null) DeleteService(model.ServiceName)  { n.calls++ }
func (n *null) SetEndpoint(*model.Endpoint)      { n.calls++ }
func (n *null) DeleteEndpoint(model.EndpointKey) { n.calls++ }

// clusterSize is a number of services with a number of endpoints each.
type clusterSize struct{ services, endpoints int }

func (c clusterSize) String() string { return fmt.Sprintf("%dx%d", c.services, c.endpoints) }

func benchService(i int) *corev1.Service {
	ip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()
	if i >= 1<<16 {
		panic("too many services")
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("team-%d", i%100), Name: fmt.Sprintf("service-%d", i),
			Labels: map[string]string{"app": fmt.Sprintf("app-%d", i)}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

// benchSlice is the k-th slice, with at most 100 endpoints, of the i-th service.
func benchSlice(i, k, endpoints, generation int) *discoveryv1.EndpointSlice {
	service := fmt.Sprintf("service-%d", i)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("team-%d", i%100),
			Name:   fmt.Sprintf("%s-abc%d", service, k),
			Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP),
			Port: ptr.To[int32](8080)}},
	}
	for e := range endpoints {
		n := i*1000 + k*100 + e
		addr := netip.AddrFrom4([4]byte{byte(11 + n>>24), byte(n >> 16), byte(n >> 8), byte(n)})
		if e == 0 && generation > 0 {
			addr = netip.AddrFrom4([4]byte{200, byte(generation >> 16), byte(generation >> 8), byte(generation)})
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true),
				Terminating: ptr.To(false)},
			NodeName: ptr.To(fmt.Sprintf("node-%d", n%500)),
			Zone:     ptr.To(fmt.Sprintf("zone-%d", n%3)),
		})
	}
	return slice
}

func (c clusterSize) objects() ([]*corev1.Service, []*discoveryv1.EndpointSlice) {
	var services []*corev1.Service
	var slices []*discoveryv1.EndpointSlice
	for i := range c.services {
		services = append(services, benchService(i))
		for k, left := 0, c.endpoints; left > 0; k, left = k+1, left-100 {
			slices = append(slices, benchSlice(i, k, min(left, 100), 0))
		}
	}
	return services, slices
}

func (c clusterSize) load(tb testing.TB, services []*corev1.Service, slices []*discoveryv1.EndpointSlice) *State {
	state, err := New(tb.Context(), Options{NodeName: "node-1", Families: []model.Family{model.IPv4}}, ClusterOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	for _, s := range services {
		state.setService(s)
	}
	for _, s := range slices {
		state.setEndpointSlice(s)
	}
	return state
}

// BenchmarkOneEndpointChanged measures from the event to the end of the Flush, with one endpoint replaced by another.
func BenchmarkOneEndpointChanged(b *testing.B) {
	for _, size := range []clusterSize{{100, 10}, {1000, 10}, {10000, 10}} {
		b.Run(size.String(), func(b *testing.B) {
			services, slices := size.objects()
			state := size.load(b, services, slices)
			r := &null{}
			state.Flush(r)
			events := make([]*discoveryv1.EndpointSlice, 1024) // services in turn, each between two versions
			for i := range events {
				events[i] = benchSlice(i/2%size.services, 0, size.endpoints, (i+1)%2)
			}
			r.calls = 0
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				state.setEndpointSlice(events[n%len(events)])
				state.Flush(r)
				n++
			}
			if r.calls < n {
				b.Fatalf("%d calls for %d changes", r.calls, n)
			}
		})
	}
}

// BenchmarkAdmitService measures the event of an unchanged Service, with and without an AdmitService.
func BenchmarkAdmitService(b *testing.B) {
	services, _ := clusterSize{1, 0}.objects()
	for name, admit := range map[string]func(*corev1.Service) bool{
		"without": nil, "with": func(*corev1.Service) bool { return true },
	} {
		b.Run(name, func(b *testing.B) {
			state, err := New(b.Context(), Options{}, ClusterOptions{AdmitService: admit})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				state.setService(services[0])
			}
		})
	}
}

// BenchmarkAdmitSlice measures the event of an unchanged EndpointSlice, with and without an AdmitSlice.
func BenchmarkAdmitSlice(b *testing.B) {
	slice := benchSlice(0, 0, 100, 0)
	for name, admit := range map[string]func(*discoveryv1.EndpointSlice) bool{
		"without": nil, "with": func(*discoveryv1.EndpointSlice) bool { return true },
	} {
		b.Run(name, func(b *testing.B) {
			state, err := New(b.Context(), Options{}, ClusterOptions{AdmitSlice: admit})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				state.setEndpointSlice(slice)
			}
		})
	}
}

// BenchmarkUnchanged measures events that change nothing for this node: an endpoint elsewhere, which no policy of this
// node uses, becomes unready; or a slice is delivered unchanged.
func BenchmarkUnchanged(b *testing.B) {
	size := clusterSize{10000, 10}
	services, slices := size.objects()
	for _, s := range services {
		s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	}
	for name, change := range map[string]func(*discoveryv1.EndpointSlice, int){
		"same slice again": func(*discoveryv1.EndpointSlice, int) {},
		"irrelevant change": func(s *discoveryv1.EndpointSlice, n int) {
			s.Endpoints[0].Conditions.Serving = ptr.To(n%2 == 0)
		},
	} {
		b.Run(size.String()+"/"+name, func(b *testing.B) {
			state := size.load(b, services, slices)
			r := &null{}
			state.Flush(r)
			r.calls = 0
			versions := []*discoveryv1.EndpointSlice{slices[7].DeepCopy(), slices[7].DeepCopy()}
			change(versions[0], 0)
			change(versions[1], 1)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				state.setEndpointSlice(versions[n%2])
				state.Flush(r)
				n++
			}
			if r.calls != 0 {
				b.Fatalf("%d calls for changes that alter nothing", r.calls)
			}
		})
	}
}

// BenchmarkFullState measures from listed objects to the end of the first Flush.
func BenchmarkFullState(b *testing.B) {
	size := clusterSize{10000, 10}
	services, slices := size.objects()
	b.Run(size.String(), func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			size.load(b, services, slices).Flush(&null{})
		}
	})
}

// BenchmarkLiveHeap reports the memory that is kept for each endpoint, once the objects are gone.
func BenchmarkLiveHeap(b *testing.B) {
	for _, size := range []clusterSize{{10000, 10}, {10000, 100}} {
		b.Run(size.String(), func(b *testing.B) {
			for b.Loop() {
				before := testkit.LiveHeap()
				state := size.load(b, nil, nil)
				for i := range size.services {
					state.setService(benchService(i))
					for k, left := 0, size.endpoints; left > 0; k, left = k+1, left-100 {
						state.setEndpointSlice(benchSlice(i, k, min(left, 100), 0))
					}
				}
				state.Flush(&null{})
				b.ReportMetric(float64(testkit.LiveHeap()-before)/float64(size.services*size.endpoints), "B/endpoint")
				runtime.KeepAlive(state)
			}
		})
	}
}
