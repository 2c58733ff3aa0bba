package preflight

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/program/source"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// state is a state of an endpoint: three bits.
type state int

const allStates = 8

func (s state) ready() bool       { return s&1 != 0 }
func (s state) serving() bool     { return s&2 != 0 }
func (s state) terminating() bool { return s&4 != 0 }

func (s state) conditions() discoveryv1.EndpointConditions {
	ready, serving, terminating := s.ready(), s.serving(), s.terminating()
	return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
}

func (s state) String() string {
	return fmt.Sprintf("ready %t, serving %t, terminating %t", s.ready(), s.serving(), s.terminating())
}

// inUpstream returns the entries of an address that may count in kube-proxy: its addEndpoints
// (pkg/proxy/endpointslicecache.go), with the slices in either order.
func inUpstream(all ...[]state) (list []state) {
	orders := [][][]state{all}
	if len(all) == 2 {
		orders = append(orders, [][]state{all[1], all[0]})
	}
	for _, order := range orders {
		exists, counts := false, state(0)
		for _, slice := range order {
			for _, endpoint := range slice {
				if !exists || !endpoint.terminating() {
					counts, exists = endpoint, true
				}
			}
		}
		list = append(list, counts)
	}
	return list
}

// compared compares kube-proxy with this library in mode nftables, where an endpoint is in slices in these states. It
// says for which traffic the endpoint is used here, and whether a difference is reported.
func compared(t *testing.T, another bool, all ...[]state) (sets model.EndpointSets, told bool) {
	t.Helper()
	objects := []metav1.Object{
		kube.Node("node-1").InternalIP("192.0.2.1").PodCIDR("10.244.1.0/24").Build(),
		kube.ServiceCIDR("kubernetes", "10.96.0.0/12"),
		kube.Service("shop/web").ClusterIP("10.96.0.10").Port("http", 80).Build(),
	}
	node, name, number, tcp := "node-1", "http", int32(8080), corev1.ProtocolTCP
	slice := func(suffix string, endpoints ...discoveryv1.Endpoint) {
		objects = append(objects, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-" + suffix,
				Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
			Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &number, Protocol: &tcp}}})
	}
	for i, states := range all {
		var endpoints []discoveryv1.Endpoint
		for _, s := range states {
			endpoints = append(endpoints, discoveryv1.Endpoint{Addresses: []string{"10.244.1.5"}, NodeName: &node,
				Conditions: s.conditions()})
		}
		slice(fmt.Sprint(i), endpoints...)
	}
	if another {
		slice("another", discoveryv1.Endpoint{Addresses: []string{"10.244.2.5"}})
	}
	m := &move{node: "node-1", kubeProxy: true}
	for _, o := range objects {
		m.objects = append(m.objects, watch.Change{Object: o})
	}
	config, _, err := Configuration(t.Context(), "nftables", &source.Cluster{})
	require.NoError(t, err)
	list, err := m.compare(t.Context(), config, config)
	require.NoError(t, err)
	require.Less(t, len(list), 2)
	for _, e := range m.new.snapshot.Service(model.ServiceName{Namespace: "shop", Name: "web"}).Endpoints {
		if e.Target.Addr().String() == "10.244.1.5" {
			sets = e.Sets
		}
	}
	return sets, len(list) > 0
}

// A line says that another entry counts in kube-proxy exactly if an entry that may count there gets other traffic than
// the one that counts here: for all pairs of states, in one slice and in two.
func TestEachPairOfEntriesOfAnAddress(t *testing.T) {
	type single struct {
		state   state
		another bool // the Service has another endpoint, which is ready
	}
	alone := map[single]model.EndpointSets{}
	for s := range state(allStates) {
		for _, another := range []bool{false, true} {
			sets, told := compared(t, another, []state{s})
			assert.False(t, told, s)
			alone[single{s, another}] = sets
		}
	}
	lines := 0
	for first := range state(allStates) {
		for second := range state(allStates) {
			for _, all := range [][][]state{{{first, second}}, {{first}, {second}}} {
				ours, told := compared(t, false, all...)
				oursToo, toldToo := compared(t, true, all...)
				differs := slices.ContainsFunc(inUpstream(all...), func(s state) bool {
					return alone[single{s, false}] != ours || alone[single{s, true}] != oursToo
				})
				assert.Equal(t, differs, told, all)
				assert.Equal(t, differs, toldToo, all)
				if told {
					lines++
				}
			}
		}
	}
	assert.Positive(t, lines)
}

// sliceOf returns an EndpointSlice of shop/web, or of another Service, with endpoints.
func sliceOf(name, service string, endpoints ...string) string {
	labels := ""
	if service != "" {
		labels = ", labels: {kubernetes.io/service-name: " + service + "}"
	}
	return fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: %s%s}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {%s}`, name, labels, strings.Join(endpoints, "}\n- {"))
}

// What kube-proxy makes of an address that is listed more than once.
func TestAnAddressThatIsListedTwice(t *testing.T) {
	const (
		here        = "addresses: [10.244.1.6], nodeName: node-1, conditions: "
		unready     = here + "{ready: false}"
		ready       = here + "{ready: true}"
		draining    = here + "{ready: false, serving: true, terminating: true}"
		published   = here + "{ready: true, serving: false, terminating: true}"
		dead        = here + "{ready: false, serving: false, terminating: true}"
		elsewhere   = "addresses: [10.244.1.6], nodeName: node-2, conditions: {ready: true}"
		hinted      = "addresses: [10.244.1.6], nodeName: node-1, hints: {forNodes: [{name: node-1}]}"
		sameAddress = "addresses: [010.244.001.006], nodeName: node-1, conditions: {ready: false}"
		headless    = "kubernetes.io/service-name: web, service.kubernetes.io/headless: \"\""
	)
	const endpoint, first = "shop/web: endpoint 10.244.1.6 ", "; then the one of the first slice counts, by name (S17)"
	const usable = "; then the most usable one counts (S17)"
	one := func(endpoints ...string) []string { return []string{sliceOf("a", "web", endpoints...)} }
	two := func(a, b string) []string { return []string{sliceOf("a", "web", a), sliceOf("b", "web", b)} }
	for name, test := range map[string]struct {
		slices []string
		want   string
	}{
		"the later is unready": {one(ready, unready),
			"is in one slice twice, and the later entry counts, which gets no traffic" + usable},
		"the later is terminating and serves": {one(unready, draining),
			"is in one slice twice, and the earlier entry counts, which gets no traffic" + usable},
		"the later is terminating and published": {one(unready, published),
			"is in one slice twice, and the earlier entry counts, which gets no traffic" + usable},
		"both terminating, the later serves": {one(dead, draining),
			"is in one slice twice, and the earlier entry counts, which gets no traffic" + usable},
		"both terminating, the later is published": {one(draining, published),
			"is in one slice twice, and the earlier entry counts, which gets traffic only while no endpoint is ready" +
				usable},
		"three times": {one(unready, draining, unready),
			"is in one slice 3 times, and an entry counts that gets no traffic" + usable},
		"the later is ready":       {one(unready, ready), ""},
		"the later is terminating": {one(ready, draining), ""},
		"both are unusable":        {one(unready, dead), ""},
		"two slices, ready and not": {two(ready, unready),
			"is in two slices with different conditions, and either may count" + usable},
		"two slices, ready and draining": {two(draining, ready), ""},
		"two slices, unready and draining": {two(unready, draining),
			"is in two slices, and an entry counts that gets no traffic" + usable},
		"two slices, draining and dead": {two(draining, dead),
			"is in two slices with different conditions, and either may count" + usable},
		"two slices, of two nodes": {two(ready, elsewhere),
			"is in two slices with different nodes, and either may count" + first},
		"two slices, with a hint and without": {two(ready, hinted),
			"is in two slices with different hints, and either may count" + first},
		"three slices": {append(two(ready, unready), sliceOf("c", "web", ready)),
			"is in 3 slices with different conditions, and any of them may count" + usable},
		"an address that is written otherwise": {two(ready, sameAddress),
			"is in two slices with different conditions, and either may count" + usable},
		"another port": {[]string{sliceOf("a", "web", ready),
			strings.Replace(sliceOf("b", "web", unready), "8080", "8081", 1)}, ""},
		"a port that the Service does not have": {[]string{strings.Replace(sliceOf("a", "web", ready), "http", "x", 1),
			strings.Replace(sliceOf("b", "web", unready), "http", "x", 1)}, ""},
		"of no Service":            {[]string{sliceOf("a", "", ready), sliceOf("b", "", unready)}, ""},
		"of a Service that is not": {[]string{sliceOf("a", "gone", ready), sliceOf("b", "gone", unready)}, ""},
		"with the label of headless Services": {[]string{
			strings.Replace(sliceOf("a", "web", ready), "kubernetes.io/service-name: web", headless, 1),
			strings.Replace(sliceOf("b", "web", unready), "kubernetes.io/service-name: web", headless, 1)}, ""},
		"hints and malformed addresses of a Service that is not": {[]string{sliceOf("a", "gone",
			"addresses: [nonsense]", "addresses: [10.244.1.7], hints: {forZones: [{name: \"\"}]}")}, ""},
		"names": {[]string{strings.ReplaceAll(strings.Replace(sliceOf("a", "web",
			"addresses: [a.example.com], hints: {forZones: [{name: \"\"}]}",
			"addresses: [a.example.com], conditions: {ready: false}"), "IPv4", "FQDN", 1), "10.244.1.6", "a.example.com")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var want []string
			if test.want != "" {
				want = []string{endpoint + test.want}
			}
			assert.Equal(t, want, lines(t, "--file", write(t, filled("", "", test.slices...)), "--from", "nftables"))
		})
	}
}
