package localstate

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Hints that are switched off do not count, as if there were none of that kind (S22).
func TestHintsCanBeSwitchedOff(t *testing.T) {
	for _, tc := range []struct {
		off      Options
		cluster  []string
		topology string
	}{
		{Options{}, []string{"10.1.0.1:8080"}, "node hints: endpoints for node me"},
		{Options{NoZoneHints: true}, []string{"10.1.0.1:8080"}, "node hints: endpoints for node me"},
		{Options{NoNodeHints: true}, []string{"10.1.0.1:8080", "10.1.0.2:8080"}, "zone hints: endpoints for zone-a"},
		{Options{NoNodeHints: true, NoZoneHints: true}, []string{"10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"},
			"none: node hints are switched off; zone hints are switched off"},
	} {
		for _, indexAbove := range []int{0, indexAbove} {
			tc.off.NodeName = me
			w := newWorldWith(t, tc.off)
			w.state.indexAbove = indexAbove
			w.set(aNode(inZone("zone-a")), aService("web", externalLocal, nodePort(30080)), aSlice("web-1",
				ep("10.1.0.1", forNodes(me), forZones("zone-a")), ep("10.1.0.2", forNodes(other), forZones("zone-a")),
				ep("10.1.0.3", local, forNodes(other), forZones("zone-b"))))
			w.flush()
			assert.Equal(t, tc.cluster, w.clusterSet("web"))
			assert.Equal(t, []string{"10.1.0.3:8080"}, w.localSet("web"), "policies count as ever")
			require.Empty(t, checkExplanations(w.state, w.got))
			e, _ := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
			assert.Equal(t, tc.topology, e.Ports[0].Topology)

			w.set(aNode(inZone("zone-b")))
			assert.Equal(t, tc.off.NoZoneHints, w.state.Pending().Endpoints == 0, "a zone without hints concerns no service")
		}
	}
}
