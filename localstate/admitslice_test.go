package localstate

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Labels and annotations of a program with a secondary network, which has its own slices next to those of the default
// network.
const (
	ownLabel = "example.com/service-name"
	network  = "example.com/network"
)

// admitOwn is the AdmitSlice of such a program: for the service of ownLabel, of the network "blue" alone, without the
// endpoints of the node "old".
func admitOwn(s *discoveryv1.EndpointSlice) bool {
	s.Labels[discoveryv1.LabelServiceName] = s.Labels[ownLabel]
	kept := s.Endpoints[:0]
	for _, e := range s.Endpoints {
		if e.NodeName == nil || *e.NodeName != "old" {
			kept = append(kept, e)
		}
	}
	s.Endpoints = kept
	s.Namespace, s.Name = "elsewhere", "another"
	return s.Annotations[network] == "blue"
}

// own makes a slice one of the program's, in a network, for the service of a name.
func own(name, service string) sliceOption {
	return func(obj *discoveryv1.EndpointSlice) {
		obj.Labels = map[string]string{ownLabel: service}
		metav1.SetMetaDataAnnotation(&obj.ObjectMeta, network, name)
	}
}

var admitting = options{Options{NodeName: me}, ClusterOptions{AdmitSlice: admitOwn}}

func TestAProgramDecidesWhatSlicesBelongTo(t *testing.T) {
	blue := aSlice("web-1", own("blue", "web"), ep("10.1.0.1"), ep("10.1.0.2", onNode("old")))
	one := []string{"10.1.0.1:8080"}
	none := []string{}
	for _, tc := range []struct {
		name     string
		event    func(w *world)
		web, api []string
	}{
		{"S13 its own label counts, and what it changes", func(*world) {}, one, none},
		{"one that it does not admit is not used",
			func(w *world) { w.set(aSlice("web-2", own("red", "web"), ep("10.1.0.9"))) }, one, none},
		{"nor one that it has admitted before",
			func(w *world) { w.set(aSlice("web-1", own("red", "web"), ep("10.1.0.1"))) }, none, none},
		{"one without labels is asked about", func(w *world) {
			w.set(aSlice("web-2", func(obj *discoveryv1.EndpointSlice) { obj.Labels = nil }, ep("10.1.0.9")))
		}, one, none},
		{"S13 a slice moves from service to service",
			func(w *world) { w.set(aSlice("web-1", own("blue", "api"), ep("10.1.0.1"))) }, none, one},
		{"S13 and back", func(w *world) {
			w.set(aSlice("web-1", own("blue", "api"), ep("10.1.0.1")))
			w.set(blue)
		}, one, none},
		{"S13 one that moved and is deleted leaves the service that it was put to", func(w *world) {
			w.set(aSlice("web-1", own("blue", "api"), ep("10.1.0.1")))
			w.delete(aSlice("web-1"))
		}, none, none},
		{"a deletion needs no more than the name", func(w *world) {
			w.delete(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-1"}})
		}, none, none},
		{"one that it does not admit is deleted",
			func(w *world) { w.delete(aSlice("web-2", own("red", "web"))) }, one, none},
		{"another one has the name that it was given",
			func(w *world) { w.set(aSlice("another", own("blue", "api"), ep("10.1.0.1"))) }, one, one},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, flushes := range []bool{false, true} {
				w := newWorldWith(t, admitting, aService("web"), aService("api"), blue)
				w.flushes = flushes
				tc.event(w)
				w.flush()
				assert.Equal(t, tc.web, w.clusterSet("web"))
				assert.Equal(t, tc.api, w.clusterSet("api"))
				require.Empty(t, checkExplanations(w.state, w.got))
				for _, name := range []string{"web-1", "web-2", "another"} {
					w.delete(aSlice(name))
				}
				w.delete(aService("web"), aService("api"))
				w.flush()
				requireNothingKept(t, w.state)
			}
		})
	}
}

func TestAdmitSliceHasACopy(t *testing.T) {
	slice := aSlice("web-1", own("blue", "web"), ep("10.1.0.1"), ep("10.1.0.2", onNode("old")))
	before := slice.DeepCopy()
	w := newWorldWith(t, admitting, aService("web"), slice)
	assert.Equal(t, before, slice, "an informer may have it")
	require.False(t, w.set(slice), "the same object again changes nothing")
}

func TestSlicesThatAreNotAdmittedAreExplained(t *testing.T) {
	w := newWorldWith(t, admitting, aService("web"), aSlice("web-1", own("red", "web"), ep("10.1.0.1")))
	e, known := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
	require.True(t, known)
	assert.Equal(t, []string{"1 endpoint in slice web-1: AdmitSlice does not admit it"}, e.Ignored)
	w.set(aSlice("web-1", own("blue", "web"), ep("10.1.0.1")))
	e, _ = w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
	assert.Empty(t, e.Ignored)
}

// Endpoints that AdmitSlice removes are held like those that others remove.
func TestASliceThatIsNotAdmittedAnyMoreIsHeld(t *testing.T) {
	opts := admitting
	opts.HoldEndpoints = holding.HoldEndpoints
	w := newWorldWith(t, opts, aService("web"), aSlice("web-1", own("blue", "web"), ep("10.1.0.1")))
	w.set(aSlice("web-1", own("red", "web"), ep("10.1.0.9")))
	w.flush()
	assert.Equal(t, []string{"10.1.0.1:8080"}, w.clusterSet("web"))
}
