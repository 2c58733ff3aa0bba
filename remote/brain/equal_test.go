package brain

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func randomState(d testkit.Random, node string) localstate.Options {
	o := localstate.Options{NodeName: node, MasqueradeAll: testkit.OneIn(d, 4),
		DrainingEndpoints: testkit.OneIn(d, 4), AllEndpoints: testkit.OneIn(d, 4),
		NoNodeHints: testkit.OneIn(d, 4), NoZoneHints: testkit.OneIn(d, 4),
		Zone: testkit.Pick(d, "", "", "", "b"), ExtraSets: testkit.Pick(d, 0, 0, model.LocalSet, model.ClusterSet)}
	switch d.IntN(4) {
	case 0:
		o.DetectLocal.NodeCIDR = true
	case 1:
		o.DetectLocal.Bridge = "cbr0"
	case 2:
		o.NodeIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	}
	if testkit.OneIn(d, 4) {
		o.Families = []model.Family{model.IPv4}
	}
	return o
}

// admit is an AdmitService: Services of version 2 are not this proxy's, and the others lose their external IPs.
func admit(s *corev1.Service) bool {
	s.Spec.ExternalIPs = nil
	return s.Labels["version"] != "2"
}

// admitSlice is an AdmitSlice: it assigns a slice with one endpoint to the second service, and does not admit slices
// with three.
func admitSlice(s *discoveryv1.EndpointSlice) bool {
	if len(s.Endpoints) == 1 {
		s.Labels[discoveryv1.LabelServiceName] = "b"
	}
	return len(s.Endpoints) != 3
}

// TestEveryNodeHasWhatItWouldWorkOutItself: through server, wire and client a node gets the very state that it would
// work out for itself, with all the promises of the calls, whatever happens to the cluster; also if the brain's program
// decides what the Services and their EndpointSlices are.
func TestEveryNodeHasWhatItWouldWorkOutItself(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			d := testkit.Seeded(seed)
			c := newCluster(baseObjects()...)
			if testkit.OneIn(d, 2) {
				c.options.AdmitService = admit
			}
			if testkit.OneIn(d, 2) {
				c.options.AdmitSlice = admitSlice
			}
			server := serve(t, Options{Source: c, Cluster: c.options, limits: limits{minInterval: -1}}, socket(t))
			var sinks []*sink.Recorder
			var states []localstate.Options
			for _, node := range nodeNames {
				rec, state := &sink.Recorder{}, randomState(d, node)
				sinks, states = append(sinks, rec), append(states, state)
				follow(t, rec, remote.Options{Targets: []string{server.target}, State: state})
			}
			for range 40 {
				for range 1 + d.IntN(5) {
					c.change(randomChange(d))
				}
				for i := range sinks {
					awaitState(t, c, states[i], sinks[i])
				}
			}
			for _, rec := range sinks {
				require.Empty(t, rec.Violations())
				require.Empty(t, rec.BrokenInvariants())
			}
		})
	}
}
