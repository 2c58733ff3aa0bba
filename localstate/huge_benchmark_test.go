package localstate

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// hugeService is a service with many endpoints, in slices of 100 as the EndpointSlice controller makes them, and its
// slices.
func hugeService(endpoints, ports int) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	service := benchService(1)
	service.Spec.Ports = nil
	var slicePorts []discoveryv1.EndpointPort
	for p := range ports {
		name := fmt.Sprintf("port-%d", p)
		service.Spec.Ports = append(service.Spec.Ports,
			corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: int32(1000 + p)})
		slicePorts = append(slicePorts, discoveryv1.EndpointPort{Name: &name, Protocol: ptr.To(corev1.ProtocolTCP),
			Port: ptr.To(int32(8000 + p))})
	}
	var slices []*discoveryv1.EndpointSlice
	for k := range endpoints / 100 {
		slice := benchSlice(1, k, 0, 0)
		slice.Ports = slicePorts
		for e := range 100 {
			slice.Endpoints = append(slice.Endpoints, hugeEndpoint((k*100+e)*7919%endpoints)) // in no order
		}
		slices = append(slices, slice)
	}
	return service, slices
}

func hugeEndpoint(n int) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}).String()},
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true),
			Terminating: ptr.To(false)},
		NodeName: ptr.To(fmt.Sprintf("node-%d", n%500)),
	}
}

// BenchmarkHugeService measures from the event to the end of the Flush: an endpoint of a service that has many is
// replaced, in a slice of 100; the service's labels change; or a slice is deleted and added again.
func BenchmarkHugeService(b *testing.B) {
	for _, c := range []struct {
		name             string
		endpoints, ports int
		change           func(n int, service *corev1.Service, slices []*discoveryv1.EndpointSlice) (metav1.Object, bool)
	}{
		{"1000", 1000, 1, replaceOne},
		{"10000", 10_000, 1, replaceOne},
		{"50000", 50_000, 1, replaceOne},
		{"10000x50ports", 10_000, 50, replaceOne},
		{"100x1000ports", 100, 1000, replaceOne},
		{"100x8000ports", 100, 8000, replaceOne},
		{"relabel50000", 50_000, 1, relabel},
		{"relabel100x8000ports", 100, 8000, relabel},
		{"slice50000", 50_000, 1, func(n int, _ *corev1.Service, slices []*discoveryv1.EndpointSlice) (metav1.Object,
			bool) {
			return slices[n/2%len(slices)], n%2 == 0
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			service, slices := hugeService(c.endpoints, c.ports)
			state := clusterSize{}.load(b, []*corev1.Service{service}, slices)
			r := &null{}
			state.Flush(r)
			r.calls = 0
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				b.StopTimer()
				object, deleted := c.change(n, service, slices)
				b.StartTimer()
				if _, err := state.Apply(object, deleted); err != nil {
					b.Fatal(err)
				}
				state.Flush(r)
				n++
			}
			if r.calls < n {
				b.Fatalf("%d calls for %d changes", r.calls, n)
			}
		})
	}
}

// replaceOne replaces an endpoint of a slice with another one, at a different place in the order.
func replaceOne(n int, _ *corev1.Service, slices []*discoveryv1.EndpointSlice) (metav1.Object, bool) {
	slice := slices[n%len(slices)]
	slice.Endpoints[n%100] = hugeEndpoint(100_000 + n*7919%1_000_000)
	return slice, false
}

// relabel changes the labels of the service.
func relabel(n int, service *corev1.Service, _ []*discoveryv1.EndpointSlice) (metav1.Object, bool) {
	service.Labels["version"] = fmt.Sprint(n)
	return service, false
}
