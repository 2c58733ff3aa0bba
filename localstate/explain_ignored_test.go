package localstate

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// A person may expect each of these slices to be used. "no endpoints" alone would not say why it is not.

func unlabelled(slice *discoveryv1.EndpointSlice) { slice.Labels = nil }

func TestExplainNamesWhatIsIgnored(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts Options
		list []metav1.Object
		want []string
	}{
		{"nothing", Options{}, []metav1.Object{aSlice("web-1", ep("10.1.0.1"))}, nil},
		{"FQDN", Options{}, []metav1.Object{aSlice("web-1", ofType("FQDN"), ep("db.example.net"))},
			[]string{"1 endpoint in slice web-1: address type FQDN"}},
		{"a family that the service does not have", Options{},
			[]metav1.Object{aSlice("web-1", ofType("IPv6"), ep("fd01::1"), ep("fd01::2"))},
			[]string{"2 endpoints in slice web-1: address type IPv6, which the service does not have"}},
		{"a family that the proxy does not serve", Options{Families: []model.Family{model.IPv4}},
			[]metav1.Object{aSlice("web-1", ofType("IPv6"), ep("fd01::1"))},
			[]string{"1 endpoint in slice web-1: address type IPv6, which this proxy does not serve"}},
		{"no ports", Options{}, []metav1.Object{aSlice("web-1", slicePorts(), ep("10.1.0.1"))},
			[]string{"1 endpoint in slice web-1: no port with a name and a number"}},
		{"a port without a number", Options{},
			[]metav1.Object{aSlice("web-1", slicePorts(discoveryv1.EndpointPort{}), ep("10.1.0.1"))},
			[]string{"1 endpoint in slice web-1: no port with a name and a number"}},
		{"a port among others, and an endpoint without an address", Options{},
			[]metav1.Object{aSlice("web-1", ep("10.1.0.1"), func(s *discoveryv1.EndpointSlice) {
				s.Ports = append(s.Ports, discoveryv1.EndpointPort{}, slicePortObject("https", "TCP", 99999))
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{})
			})}, []string{"2 ports in slice web-1: no name and number, or not a valid one",
				"1 endpoint in slice web-1: no address"}},
		{"no label", Options{}, []metav1.Object{aSlice("web", unlabelled, ep("10.1.0.1")),
			aSlice("web-1", unlabelled, ep("10.1.0.2")), aSlice("webs", unlabelled, ep("10.1.0.3")),
			aSlice("we", unlabelled, ep("10.1.0.3"))},
			[]string{"2 endpoints in 2 slices (web, web-1): no label kubernetes.io/service-name"}},
		{"the label of headless ones", Options{}, []metav1.Object{aSlice("web-1", ep("10.1.0.1"),
			func(slice *discoveryv1.EndpointSlice) { slice.Labels[corev1.IsHeadlessService] = "" })},
			[]string{"1 endpoint in slice web-1: the label service.kubernetes.io/headless"}},
		{"further addresses", Options{}, []metav1.Object{aSlice("web-1", ep("10.1.0.1"), func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Addresses = []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"}
		})}, []string{"2 addresses in slice web-1 (10.1.0.2 ...): only the first address of an endpoint counts"}},
		{"further addresses behind one that does not parse", Options{}, []metav1.Object{aSlice("web-1", ep("10.1.0.1"),
			ep("db.local"), ep("other.local"), func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[1].Addresses = []string{"db.local", "10.1.2.3"}
			})}, []string{"1 address in slice web-1 (10.1.2.3 ...): only the first address of an endpoint counts",
			`2 addresses in slice web-1 ("db.local" ...): not an IPv4 address`}},
		{"many", Options{}, []metav1.Object{aSlice("d", ofType("FQDN"), ep("d")), aSlice("c", ofType("FQDN"), ep("c")),
			aSlice("b", ofType("FQDN"), ep("b")), aSlice("a", ofType("FQDN"), ep("a"))},
			[]string{"4 endpoints in 4 slices (a, b, c, ...): address type FQDN"}},
		{"another service's", Options{}, []metav1.Object{aSlice("web-1", ofService("shop"), ofType("FQDN"), ep("a"))}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.opts.NodeName = me
			w := newWorldWith(t, tc.opts, append(tc.list, aService("web"))...)
			e, ok := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
			require.True(t, ok)
			require.Equal(t, tc.want, e.Ignored)
			for _, line := range tc.want {
				require.Contains(t, e.String(), "  ignored: "+line+"\n")
			}
		})
	}
}

func TestWhatIsIgnoredIsForgotten(t *testing.T) {
	w := newWorld(t, aService("web"), aSlice("web-1", ofType("FQDN"), ep("db.example.net")))
	ignored := func() []string {
		e, _ := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
		return e.Ignored
	}
	require.Len(t, ignored(), 1)
	w.change([]metav1.Object{aSlice("web-1", ep("10.1.0.1"))}...)
	require.Empty(t, ignored(), "the slice is used now")
	w.change([]metav1.Object{aSlice("web-1", ofType("FQDN"), ep("db.example.net"))}...)
	require.Len(t, ignored(), 1, "and is not any more")
	require.Empty(t, w.endpoints("web"))
	w.delete(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-1"}})
	require.Empty(t, ignored())
	require.Empty(t, w.state.ignored)
}
