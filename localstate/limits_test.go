package localstate

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// product returns a service with that many ports, and a slice with that many addresses that has all of the ports.
func product(name string, ports, addresses int) (*corev1.Service, *discoveryv1.EndpointSlice) {
	svc, slice := aService(name), aSlice(name+"-1", ofService(name))
	svc.Spec.Ports, slice.Ports = nil, nil
	for i := range ports {
		port := fmt.Sprintf("p%05d", i)
		svc.Spec.Ports = append(svc.Spec.Ports, tcp(port, int32(1+i)))
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port, Port: ptr.To(int32(8080))})
	}
	for i := range addresses {
		addr := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}})
	}
	return svc, slice
}

// TestPortsTimesEndpoints: two services that ask for too much get what the limits allow, the older one first (S60).
func TestPortsTimesEndpoints(t *testing.T) {
	const own, left = 26, 4 // ports: 1,300 endpoints, and 200 of the 225 that are left
	svc, slice := product("a", 60, 50)
	w := newWorldWith(t, ClusterOptions{EndpointLimits: EndpointLimits{Service: 1349, Namespace: 1525}}, svc, slice)
	requireServed := func(name string, ports int) {
		t.Helper()
		list := w.mustService(name).Ports
		for i, p := range list {
			require.Equal(t, i >= ports, p.TooManyEndpoints, "port %s of %s", p.Name, name)
		}
		require.Len(t, w.endpoints(name), min(ports, len(list))*50)
	}
	requireServed("a", own)

	older, olderSlice := product("b", 60, 50)
	svc.CreationTimestamp, older.CreationTimestamp = metav1.Unix(2, 0), metav1.Unix(1, 0)
	w.set(older, olderSlice, svc)
	w.flush()
	requireServed("b", own)
	requireServed("a", left)

	older.Spec.Ports = older.Spec.Ports[:1]
	w.set(older)
	w.flush()
	requireServed("b", 1)
	requireServed("a", own)
}

// TestRefusedEndpointsTakeNoMemory: what exceeds a limit is refused before it is made.
func TestRefusedEndpointsTakeNoMemory(t *testing.T) {
	svc, slice := product("huge", 6000, 500)
	flush := func(l EndpointLimits) (changes Changes, allocated int) {
		state, err := New(klog.NewContext(t.Context(), klog.Logger{}), Options{NodeName: me},
			ClusterOptions{EndpointLimits: l})
		require.NoError(t, err)
		w := testkit.Measure(func() {
			state.setService(svc)
			state.setEndpointSlice(slice)
			changes = state.Flush(&null{})
		})
		return changes, w.Bytes
	}
	changes, allocated := flush(EndpointLimits{Service: 1000})
	assert.Equal(t, 1000, changes.Endpoints)
	assert.Less(t, allocated, 16<<20, "bytes; all 3,000,000 endpoints take 741 MB")
	changes, _ = flush(EndpointLimits{})
	assert.Equal(t, 262_144/500*500, changes.Endpoints, "by default")
}

func TestEndpointLimitsAreNotNegative(t *testing.T) {
	_, err := New(t.Context(), Options{}, ClusterOptions{EndpointLimits: EndpointLimits{Namespace: -1}})
	assert.ErrorContains(t, err, "endpoint limits: must not be negative")
}

// TestSmallProductsCountTogether: many services that each ask for little may ask for much together. Those that ask for
// next to nothing always get it.
func TestSmallProductsCountTogether(t *testing.T) {
	const services, ports, addresses = 10, 8, 8
	limits := EndpointLimits{Service: 4096 * addresses, Namespace: 100}
	var objects []metav1.Object
	for i := range services {
		svc, slice := product(fmt.Sprintf("s%d", i), ports, addresses)
		svc.CreationTimestamp = metav1.Unix(int64(100-i), 0)
		objects = append(objects, svc, slice)
	}
	tiny, tinySlice := product("tiny", 1, addresses)
	tiny.CreationTimestamp = metav1.Unix(200, 0)
	w := newWorldWith(t, ClusterOptions{EndpointLimits: limits}, append(objects, tiny, tinySlice)...)
	served := func() (list []int) {
		for i := range services {
			list = append(list, len(w.endpoints(fmt.Sprintf("s%d", i))))
		}
		return list
	}
	require.Equal(t, []int{0, 0, 0, 0, 0, 0, 0, 0, 32, 64}, served(), "the oldest first, whole ports")
	require.Len(t, w.endpoints("tiny"), addresses)

	w.delete(objects[18], objects[19])
	w.flush()
	require.Equal(t, []int{0, 0, 0, 0, 0, 0, 0, 32, 64, 0}, served())
	w.delete(objects[:16]...)
	w.flush()
	require.Equal(t, []int{0, 0, 0, 0, 0, 0, 0, 0, 64, 0}, served())
	one, another := objects[0], objects[1]
	w.set(one, another)
	w.flush()
	require.Equal(t, []int{32, 0, 0, 0, 0, 0, 0, 0, 64, 0}, served(), "made again")
}

// TestServicesWithinTheLimitsAreNotDecidedAbout: they are counted, and neither sorted nor looked at again.
func TestServicesWithinTheLimitsAreNotDecidedAbout(t *testing.T) {
	var objects []metav1.Object
	for i := range 20 {
		svc, slice := product(fmt.Sprintf("s%d", i), 8, 10)
		objects = append(objects, svc, slice)
	}
	w := newWorldWith(t, ClusterOptions{}, objects...)
	n := w.state.limits.namespaces["ns"]
	require.Len(t, n.services, 20)
	require.EqualValues(t, 20*80, n.asked)
	require.Nil(t, n.sorted)
	w.delete(objects...)
	w.flush()
	require.Empty(t, w.state.limits.namespaces)
}
