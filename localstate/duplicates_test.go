package localstate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Every entry has the same target. The node names show which one has won.

func TestDuplicatesInOneSlice(t *testing.T) {
	for _, tc := range []struct {
		name    string
		entries []sliceOption
		winner  string
		used    bool
	}{
		{"S17 the later of two ready ones wins", []sliceOption{ep("10.1.0.1", onNode("a")),
			ep("10.1.0.1", onNode("b"))}, "b", true},
		{"S17 a later unready one does not win over a ready one",
			[]sliceOption{ep("10.1.0.1", onNode("a")), ep("10.1.0.1", onNode("b"), servingUnready)}, "a", true},
		{"S17 nor over one that serves while it terminates",
			[]sliceOption{ep("10.1.0.1", onNode("a"), draining), ep("10.1.0.1", onNode("b"), unready)}, "a", true},
		{"S17 nor does an earlier unready one",
			[]sliceOption{ep("10.1.0.1", onNode("a"), unready), ep("10.1.0.1", onNode("b"), draining)}, "b", true},
		{"S17 one that serves while it terminates wins over one that does not",
			[]sliceOption{ep("10.1.0.1", onNode("a"), dead), ep("10.1.0.1", onNode("b"), draining)}, "b", true},
		{"S17 a live one that is ready wins over one that is ready and terminating",
			[]sliceOption{ep("10.1.0.1", onNode("a")), ep("10.1.0.1", onNode("b"), readyTerminating)}, "a", true},
		{"S17 of unusable ones a live one wins",
			[]sliceOption{ep("10.1.0.1", onNode("a"), unready), ep("10.1.0.1", onNode("b"), dead)}, "a", false},
		{"S17 the later of two unready ones wins",
			[]sliceOption{ep("10.1.0.1", onNode("a"), unready), ep("10.1.0.1", onNode("b"), unready)}, "b", false},
		{"S17 a later terminating one does not", []sliceOption{ep("10.1.0.1", onNode("a")),
			ep("10.1.0.1", onNode("b"), draining)}, "a", true},
		{"S17 the first of two that serve while they terminate wins", []sliceOption{ep("10.1.0.1", onNode("a"), draining),
			ep("10.1.0.1", onNode("b"), draining)}, "a", true},
		{"S17 one that is ready and terminating wins over an unready one",
			[]sliceOption{ep("10.1.0.1", onNode("a"), servingUnready), ep("10.1.0.1", onNode("b"), readyTerminating)},
			"b", true},
		{"S17 a later live one wins over a terminating one",
			[]sliceOption{ep("10.1.0.1", onNode("a"), draining), ep("10.1.0.1", onNode("b"))}, "b", true},
		{"S17 terminating, live, terminating is live",
			[]sliceOption{ep("10.1.0.1", onNode("a"), draining), ep("10.1.0.1", onNode("b")),
				ep("10.1.0.1", onNode("c"), draining)}, "b", true},
		{"S17 addresses that are written differently are the same",
			[]sliceOption{ep("10.1.0.1", onNode("a")), ep("010.001.0.1", onNode("b"))}, "b", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			checkWinner(t, tc.winner, tc.used, aSlice("web-1", tc.entries...))
		})
	}
}

func TestManyDuplicates(t *testing.T) {
	var entries []sliceOption
	for i := range 100 { // so many that a sort may shuffle equals
		entries = append(entries, ep("10.1.0.1", onNode(fmt.Sprint("node-", i))),
			ep("10.1.0.2", onNode(fmt.Sprint("node-", i)), draining))
	}
	w := newWorld(t, aService("web", ports(udp("http", 80))),
		aSlice("web-1", append(entries, slicePorts(slicePortObject("http", "UDP", 80)))...))
	require.Len(t, w.got.endpoints, 2)
	require.Equal(t, "node-99", w.got.sortedEndpoints()[0].Node, "S17 the last one")
	require.Equal(t, "node-0", w.got.sortedEndpoints()[1].Node, "S17 the first one, where all are terminating")
}

func TestDuplicatesAcrossSlices(t *testing.T) {
	one := func(name, node string, options ...endpointOption) *discoveryv1.EndpointSlice {
		return aSlice(name, ep("10.1.0.1", append(options, onNode(node))...))
	}
	for _, tc := range []struct {
		name   string
		slices []*discoveryv1.EndpointSlice
		winner string
		used   bool
	}{
		{"S17 a live one wins over a terminating one, whatever the names",
			[]*discoveryv1.EndpointSlice{one("web-1", "a", draining), one("web-2", "b")}, "b", true},
		{"S17 but not an unready one over a ready one", []*discoveryv1.EndpointSlice{one("web-1", "a", readyTerminating),
			one("web-2", "b", servingUnready)}, "a", true},
		{"S17 nor over one that serves while it terminates", []*discoveryv1.EndpointSlice{one("web-1", "a", unready),
			one("web-2", "b", draining)}, "b", true},
		{"S17 a ready one wins over an unready one",
			[]*discoveryv1.EndpointSlice{one("web-1", "a", unready), one("web-2", "b")}, "b", true},
		{"S17 also among terminating ones", []*discoveryv1.EndpointSlice{one("web-1", "a", draining),
			one("web-2", "b", readyTerminating)}, "b", true},
		{"S17 the first slice by name wins among equals",
			[]*discoveryv1.EndpointSlice{one("web-2", "b"), one("web-1", "a")}, "a", true},
		{"S17 among terminating ones one that serves wins",
			[]*discoveryv1.EndpointSlice{one("web-1", "a", dead), one("web-2", "b", draining)}, "b", true},
		{"S17 three slices", []*discoveryv1.EndpointSlice{one("web-1", "a", draining), one("web-2", "b", unready),
			one("web-3", "c")}, "c", true},
		{"S17 an unready entry in the slice of a ready one changes nothing", []*discoveryv1.EndpointSlice{
			one("web-1", "a", unready),
			aSlice("web-2", ep("10.1.0.1", onNode("b1")), ep("10.1.0.1", onNode("b2"), unready))}, "b1", true},
		{"S17 the first slice's later one wins among equals", []*discoveryv1.EndpointSlice{
			one("web-2", "b"), aSlice("web-1", ep("10.1.0.1", onNode("a1")), ep("10.1.0.1", onNode("a2")))},
			"a2", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			checkWinner(t, tc.winner, tc.used, tc.slices...)
		})
	}
}

// checkWinner checks which entry wins for a TCP and a UDP port, in any order of the slices.
func checkWinner(t *testing.T, winner string, used bool, list ...*discoveryv1.EndpointSlice) {
	forEachOrder(list, func(list []*discoveryv1.EndpointSlice) {
		for _, slice := range list {
			slicePorts(slicePortObject("http", "TCP", 8080), slicePortObject("dns", "UDP", 53))(slice)
		}
		w := newWorld(t, aService("web", ports(tcp("http", 80), udp("dns", 53))))
		for _, slice := range list {
			w.change([]metav1.Object{slice}...)
		}
		explanation, _ := w.state.Explain(w.mustService("web").Name)
		for _, port := range explanation.Ports {
			for _, e := range port.Endpoints {
				require.Equal(t, e.Node != winner, e.Reason == ReasonDuplicate, "%v of %s", e.Reason, e.Node)
			}
		}
		if used {
			require.Equal(t, []string{"dns/UDP 10.1.0.1:53 Cluster", "http/TCP 10.1.0.1:8080 Cluster"},
				w.endpoints("web"))
		} else {
			require.Empty(t, w.clusterSet("web"))
		}
		for _, e := range w.got.endpoints {
			require.Equal(t, winner, e.Node)
		}
	})
}
