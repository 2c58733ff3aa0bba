package localstate

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// A service with many ports, some of them invalid, gets the endpoints of each valid one (S4, S15).
func TestManyPorts(t *testing.T) {
	for _, ports := range []int{5, 50, 200} {
		t.Run(fmt.Sprint(ports), func(t *testing.T) {
			svc := benchService(1)
			svc.Spec.Ports = nil
			slice := benchSlice(1, 0, 0, 0)
			slice.Ports = nil
			for i := range ports {
				name := fmt.Sprintf("p%d", i)
				svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(1000 + i)})
				slice.Ports = append(slice.Ports,
					discoveryv1.EndpointPort{Name: &name, Port: ptr.To(int32(8000 + i))})
			}
			last := fmt.Sprintf("p%d", ports-1)
			svc.Spec.Ports = append(svc.Spec.Ports,
				corev1.ServicePort{Name: last, Port: 2000},    // the name is taken
				corev1.ServicePort{Name: "other", Port: 1000}, // the number is taken
				corev1.ServicePort{Name: "other", Port: 1000, Protocol: corev1.ProtocolUDP},
				corev1.ServicePort{Name: "other", Port: 3000, Protocol: corev1.ProtocolUDP}, // the name
			)
			slice.Ports = append(slice.Ports,
				discoveryv1.EndpointPort{Name: &last, Port: ptr.To(int32(9000))}, // two numbers for one name
				discoveryv1.EndpointPort{Name: ptr.To("unknown"), Port: ptr.To(int32(9001))},
				discoveryv1.EndpointPort{Name: ptr.To("p0"), Port: ptr.To(int32(9002)),
					Protocol: ptr.To(corev1.ProtocolUDP)},
			)
			slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
			w := newWorld(t, svc, slice)

			name := model.ServiceName{Namespace: svc.Namespace, Name: svc.Name}
			service := w.got.services[name]
			assert.Len(t, service.Ports, ports+1)
			assert.EqualValues(t, 1000, service.Port("other", model.UDP).Port)
			want := map[string][]uint16{last: {uint16(8000 + ports - 1), 9000}}
			for i := range ports - 1 {
				want[fmt.Sprintf("p%d", i)] = []uint16{uint16(8000 + i)}
			}
			check := func() {
				t.Helper()
				got := map[string][]uint16{}
				for _, key := range slices.SortedFunc(maps.Keys(w.got.endpoints), model.EndpointKey.Compare) {
					got[key.Port.Port] = append(got[key.Port.Port], key.Target.Port())
				}
				assert.Equal(t, want, got)
			}
			check()
			explanation, _ := w.state.Explain(name)
			assert.Len(t, explanation.UnmatchedPorts, 2)

			// A port in the middle is removed: those after it have other places now.
			svc = svc.DeepCopy()
			svc.Spec.Ports = append(svc.Spec.Ports[:3], svc.Spec.Ports[4:]...)
			w.set(svc)
			w.flush()
			delete(want, "p3")
			check()
		})
	}
}
