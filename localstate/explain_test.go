package localstate

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

var update = flag.Bool("update", false, "write the golden files")

var reasons = []Reason{
	ReasonReady, ReasonNodeHint, ReasonZoneHint, ReasonLastResort, ReasonLocal,
	ReasonNotReady, ReasonNotServing, ReasonDraining, ReasonOtherNode, ReasonOtherZone, ReasonNotLocal, ReasonDuplicate,
	ReasonUnknownNode,
}

func TestReasons(t *testing.T) {
	both := []serviceOption{internalLocal, externalLocal, nodePort(30080)}
	localOnly := []serviceOption{internalLocal}
	seen := map[Reason]bool{}
	for _, tc := range []struct {
		name    string
		options []serviceOption
		// The first endpoint is the one that is explained.
		endpoints []sliceOption
		sets      string
		reason    Reason
		text      string
	}{
		{"ready", nil, []sliceOption{ep("10.1.0.1")}, "Cluster", ReasonReady, "ready"},
		{"ready and here", both, []sliceOption{ep("10.1.0.1", local)}, "Cluster,Local", ReasonReady, "ready"},
		{"ready and here, and only that counts", localOnly, []sliceOption{ep("10.1.0.1", local)}, "Local", ReasonReady,
			"ready, on this node"},
		{"node hint", nil, []sliceOption{ep("10.1.0.1", forNodes(me))}, "Cluster", ReasonNodeHint,
			"node hint names this node"},
		{"zone hint", nil, []sliceOption{ep("10.1.0.1", forZones("zone-a"))}, "Cluster", ReasonZoneHint,
			"zone hint names this node's zone"},
		{"node hint for others", nil, []sliceOption{ep("10.1.0.1", forNodes("x", "y")), ep("10.1.0.2", forNodes(me))},
			"-", ReasonOtherNode, "node hint names x, y"},
		{"zone hint for others", nil, []sliceOption{ep("10.1.0.1", forZones("x")), ep("10.1.0.2", forZones("zone-a"))},
			"-", ReasonOtherZone, "zone hint names x"},
		{"zone hint for others, but here", both, []sliceOption{ep("10.1.0.1", local, forZones("x")),
			ep("10.1.0.2", forZones("zone-a"))}, "Local", ReasonLocal,
			"on this node, for local traffic only: zone hint names x"},
		{"zone hint for others does not matter where only the local set is used", localOnly,
			[]sliceOption{ep("10.1.0.1", local, forZones("x")), ep("10.1.0.2", forZones("zone-a"))},
			"Local", ReasonReady, "ready, on this node"},
		{"not ready", nil, []sliceOption{ep("10.1.0.1", unready)}, "-", ReasonNotReady, "not ready"},
		{"not ready, but serving", nil, []sliceOption{ep("10.1.0.1", servingUnready)}, "-", ReasonNotReady,
			"not ready"},
		{"terminating and not serving", nil, []sliceOption{ep("10.1.0.1", dead)}, "-", ReasonNotServing,
			"terminating and not serving"},
		{"last resort", nil, []sliceOption{ep("10.1.0.1", draining)}, "Cluster", ReasonLastResort,
			"serving while it terminates, and no endpoint is ready"},
		{"last resort here", localOnly, []sliceOption{ep("10.1.0.1", local, draining), ep("10.1.0.2")},
			"Local", ReasonLastResort, "serving while it terminates, and no endpoint on this node is ready, on this " +
				"node"},
		{"last resort for local traffic", both, []sliceOption{ep("10.1.0.1", local, draining), ep("10.1.0.2")},
			"Local", ReasonLocal, "on this node, for local traffic only: terminating, and others are ready"},
		{"draining", nil, []sliceOption{ep("10.1.0.1", draining), ep("10.1.0.2")}, "-", ReasonDraining,
			"terminating, and others are ready"},
		{"draining here", localOnly, []sliceOption{ep("10.1.0.1", local, draining), ep("10.1.0.2", local)}, "-",
			ReasonDraining, "terminating, and others on this node are ready"},
		{"elsewhere", localOnly, []sliceOption{ep("10.1.0.1", onNode(other))}, "-", ReasonNotLocal,
			"on node other, and traffic stays on this node"},
		{"draining elsewhere", localOnly, []sliceOption{ep("10.1.0.1", onNode(other), draining)}, "-", ReasonNotLocal,
			"on node other, and traffic stays on this node"},
		{"nowhere", localOnly, []sliceOption{ep("10.1.0.1")}, "-", ReasonUnknownNode,
			"its node is unknown, and traffic stays on this node"},
		{"duplicate", nil, []sliceOption{ep("10.1.0.1"), ep("10.1.0.1")}, "-", ReasonDuplicate,
			"another entry with the same address and port is preferred"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, aNode(inZone("zone-a")), aService("web", tc.options...), aSlice("web-1", tc.endpoints...))
			e, ok := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
			require.True(t, ok)
			got := e.Ports[0].Endpoints[0]
			require.Equal(t, tc.sets, got.Sets.String())
			require.Equal(t, tc.reason, got.Reason)
			require.Equal(t, tc.text, got.Text)
		})
		seen[tc.reason] = true
	}
	for _, r := range reasons {
		require.True(t, seen[r], "no case for %s", r)
	}
}

func TestExplainTopology(t *testing.T) {
	for _, tc := range []struct {
		name      string
		zone      string
		endpoints []sliceOption
		want      string
	}{
		{"no endpoint", "zone-a", nil, "none: no endpoint is ready"},
		{"none is ready", "zone-a", []sliceOption{ep("10.1.0.1", draining, forZones("zone-a"))},
			"none: no endpoint is ready"},
		{"no hints", "zone-a", []sliceOption{ep("10.1.0.1")}, "none: no endpoint has a hint"},
		{"node hints", "zone-a", []sliceOption{ep("10.1.0.1", forNodes(me), forZones("zone-a"))},
			"node hints: endpoints for node me"},
		{"zone hints", "zone-a", []sliceOption{ep("10.1.0.1", forZones("zone-a"))}, "zone hints: endpoints for zone-a"},
		{"one has no zone hint", "zone-a", []sliceOption{ep("10.1.0.1", forZones("zone-a")), ep("10.1.0.2")},
			"none: 1 of 2 ready endpoints have no zone hint"},
		{"one has no node hint", "zone-a", []sliceOption{ep("10.1.0.1", forNodes(me)), ep("10.1.0.2")},
			"none: 1 of 2 ready endpoints have no node hint"},
		{"none for this zone", "zone-a", []sliceOption{ep("10.1.0.1", forZones("zone-b"))},
			"none: no zone hint of a ready endpoint names zone-a"},
		{"the zone is not known", "", []sliceOption{ep("10.1.0.1", forZones("zone-b"))},
			"none: this node's zone is unknown"},
		{"neither", "zone-a", []sliceOption{ep("10.1.0.1", forZones("zone-b"), forNodes("x"))},
			"none: no node hint of a ready endpoint names me; no zone hint of a ready endpoint names zone-a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, aNode(inZone(tc.zone)), aService("web"), aSlice("web-1", tc.endpoints...))
			e, _ := w.state.Explain(w.mustService("web").Name)
			require.Equal(t, tc.want, e.Ports[0].Topology)
		})
	}
}

// TestExplanationTexts compares with files under testdata/explain, which are easier to read than code. "go test
// -update" writes them.
func TestExplanationTexts(t *testing.T) {
	const v6 = discoveryv1.AddressTypeIPv6
	for _, tc := range []struct {
		file    string
		objects []metav1.Object
	}{
		{"ready", []metav1.Object{aService("web"),
			aSlice("web-1", ep("10.1.0.1", local), ep("10.1.0.2", onNode(other)), ep("10.1.0.3", unready))}},
		{"topology", []metav1.Object{aService("web", nodePort(30080), externalLocal), aSlice("web-1",
			ep("10.1.0.1", onNode(other), forZones("zone-a")), ep("10.1.0.2", local, forZones("zone-b")),
			ep("10.1.0.3", onNode(other), forZones("zone-b", "zone-c")), ep("10.1.0.4", local, draining))}},
		{"dual-stack", []metav1.Object{aService("web", clusterIPs("fd00::1", "10.0.0.1"), internalLocal,
			ports(tcp("http", 80), udp("dns", 53))),
			aSlice("web-1", ep("10.1.0.1", local), ep("10.1.0.2")),
			aSlice("web-6", ofType(v6), slicePorts(slicePortObject("http", "TCP", 8080),
				slicePortObject("dns", "UDP", 5353)), ep("fd01::1", onNode(other)), ep("fd01::2", local))}},
		{"mistakes", []metav1.Object{aService("web"),
			aSlice("web-1", slicePorts(slicePortObject("htpp", "TCP", 8080), slicePortObject("http", "UDP", 8081)),
				ep("10.1.0.1")),
			aSlice("web-2", ep("pod"), ep("fd01::1"), ep("10.1.0.2")), aSlice("web-3", ep("10.1.0.2"))}},
		{"headless", []metav1.Object{aService("web", clusterIPs("None")), aSlice("web-1", ep("10.1.0.1"), ep("pod"))}},
		{"no-service", []metav1.Object{aSlice("web-1", ep("10.1.0.1"))}},
		{"other-proxy", []metav1.Object{aService("web", func(obj *corev1.Service) {
			metav1.SetMetaDataLabel(&obj.ObjectMeta, labelServiceProxyName, "cilium")
		})}},
	} {
		t.Run(tc.file, func(t *testing.T) {
			w := newWorld(t, append(tc.objects, aNode(inZone("zone-a")))...)
			e, ok := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
			require.True(t, ok)
			file := filepath.Join("testdata", "explain", tc.file+".txt")
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(e.String()), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), e.String())
			_, err = json.Marshal(e)
			require.NoError(t, err)
		})
	}
}

// TestExplainNamesTheLabelOfThisProxy: slices are delivered whichever proxy serves their Service, so a wrong
// ServiceProxyName shows here.
func TestExplainNamesTheLabelOfThisProxy(t *testing.T) {
	w := newWorldWith(t, ClusterOptions{ServiceProxyName: "mine"}, aSlice("web-1", ep("10.1.0.1")))
	e, ok := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
	require.True(t, ok)
	require.Contains(t, e.Skipped, `its label service.kubernetes.io/service-proxy-name is not "mine"`)
}

func TestExplainInvalidAddresses(t *testing.T) {
	w := newWorld(t, aService("web"))
	for _, test := range []struct {
		invalid []string
		want    []string
	}{
		{[]string{"pod"}, []string{`1 address in slice web-1 ("pod"): not an IPv4 address`}},
		{[]string{"another"}, []string{`1 address in slice web-1 ("another"): not an IPv4 address`}},
		{[]string{"another", "fd01::1"}, []string{`2 addresses in slice web-1 ("another" ...): not an IPv4 address`}},
		{},
	} {
		slice := aSlice("web-1", ep("10.1.0.1"))
		for _, address := range test.invalid {
			ep(address)(slice)
		}
		w.change([]metav1.Object{slice}...)
		e, _ := w.state.Explain(w.mustService("web").Name)
		require.Equal(t, test.want, e.Ignored)
	}
	w.delete(aService("web"))
	w.set(aSlice("web-1", ep("pod")))
	e, _ := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
	require.Equal(t, []string{`1 address in slice web-1 ("pod"): not an IPv4 address`}, e.Ignored, "without a Service")
}

func TestExplainWhatIsNotKnown(t *testing.T) {
	w := newWorld(t)
	known := func() bool {
		_, ok := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
		return ok
	}
	require.False(t, known())
	w.set(aService("web", clusterIPs("None")))
	require.True(t, known(), "a service that is skipped")
	w.delete(aService("web"))
	require.False(t, known(), "and goes")
	w.set(aSlice("web-1"))
	require.True(t, known(), "a slice alone")
	w.delete(aSlice("web-1"))
	w.flush()
	require.False(t, known())
}

// An explanation can be computed while the state changes: it reflects the moment of the call.
func TestAnExplanationIsOfTheMomentItWasAskedFor(t *testing.T) {
	for _, above := range []int{0, indexAbove} {
		r := testkit.Seeded(7)
		state, err := New(klog.NewContext(t.Context(), klog.Logger{}), Options{NodeName: me}, ClusterOptions{})
		require.NoError(t, err)
		state.indexAbove = above
		explained := 0
		for range 300 {
			for range 1 + r.IntN(4) {
				e := randomEvent(r)
				_, err := state.Apply(e.obj, e.deleted)
				require.NoError(t, err)
			}
			if testkit.OneIn(r, 2) {
				state.Flush(newMirror())
			}
			for name := range state.services {
				want, _ := state.Explain(name)
				explain, known := state.ExplainLater(name)
				require.True(t, known)
				done := make(chan *Explanation)
				go func() { done <- explain() }()
				e := randomEvent(r)
				_, err := state.Apply(e.obj, e.deleted)
				require.NoError(t, err)
				state.Flush(newMirror())
				require.Equal(t, want, <-done)
				explained++
				break
			}
		}
		require.Greater(t, explained, 200)
	}
}

// TestExplainIsAheadOfFlush: an explanation reflects the known objects, and changes nothing.
func TestExplainIsAheadOfFlush(t *testing.T) {
	w := newWorld(t, aService("web"), aSlice("web-1", ep("10.1.0.1")))
	w.set(aSlice("web-1", ep("10.1.0.2")))
	for range 2 {
		e, _ := w.state.Explain(w.mustService("web").Name)
		require.Len(t, e.Ports[0].Endpoints, 1)
		require.Equal(t, "10.1.0.2:8080", e.Ports[0].Endpoints[0].Target.String())
	}
	require.Equal(t, []string{"10.1.0.1:8080 Cluster"}, w.endpoints("web"))
	require.Equal(t, Changes{Endpoints: 2, Families: model.IPv4.Set()}, w.flush())
}

// checkExplanations returns the differences between Explain and the values passed on.
func checkExplanations(s *State, got *mirror) []string {
	var problems []string
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	explained := map[model.EndpointKey]bool{}
	for name := range s.services {
		e, ok := s.Explain(name)
		svc := got.services[name]
		if !ok || (e.Skipped == "") != (svc != nil) {
			wrong("%v: explained %v, skipped %q, handed over %v", name, ok, e.Skipped, svc != nil)
			continue
		}
		for _, p := range e.Ports {
			family := model.IPv4
			if p.Family == "IPv6" {
				family = model.IPv6
			}
			if port := svc.Port(p.Port.Port, p.Port.Protocol); port == nil || *port.Routes.At(family) != p.Routes {
				wrong("%v: explained as %v, handed over %v", p.Port, p.Routes, port)
			}
			for _, x := range p.Endpoints {
				key := model.EndpointKey{Port: p.Port, Target: x.Target}
				handed := got.endpoints[key]
				if x.Text == "" || (x.Reason == ReasonDuplicate) && x.Sets != 0 {
					wrong("%v: %+v", key, x)
				}
				used := map[Reason]bool{ReasonReady: true, ReasonNodeHint: true, ReasonZoneHint: true,
					ReasonLastResort: true, ReasonLocal: true}[x.Reason]
				if used != (x.Sets != 0) {
					wrong("%v: sets %v because %s", key, x.Sets, x.Reason)
				}
				if x.Reason == ReasonDuplicate {
					continue
				}
				if explained[key] {
					wrong("%v is explained twice", key)
				}
				explained[key] = true
				if handed == nil && x.Sets != 0 ||
					handed != nil && (handed.Sets != x.Sets || handed.Node != x.Node || handed.Ready != x.Ready ||
						handed.Serving != x.Serving || handed.Terminating != x.Terminating) {
					wrong("%v: explained as %+v, handed over %v", key, x, handed)
				}
			}
			for _, line := range strings.Split(strings.TrimSpace(e.String()), "\n") {
				if strings.Contains(line, "%!") {
					wrong("%v: %q", name, line)
				}
			}
		}
	}
	for key := range got.endpoints {
		if !explained[key] {
			wrong("%v is handed over and not explained", key)
		}
	}
	return problems
}
