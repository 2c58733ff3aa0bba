package localstate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Situations from public reports about service proxies; docs/reports.md has the reports.

// A virtual machine that keeps its address moves to this node: for a while two entries have the address, and for some
// seconds neither is ready.
func TestALiveMigrationWithOneAddress(t *testing.T) {
	w := newWorld(t, aService("vm", externalLocal, vips("192.0.2.7"), healthCheck(30000)))
	source, target := onNode(other), onNode(me)
	for _, step := range []struct {
		name    string
		slice   *discoveryv1.EndpointSlice
		cluster []string
		local   int
	}{
		{"before", aSlice("vm-1", ofService("vm"), ep("10.1.0.1", source)), []string{"10.1.0.1:8080"}, 0},
		{"the target has come", aSlice("vm-1", ofService("vm"), ep("10.1.0.1", source), ep("10.1.0.1", target, unready)),
			[]string{"10.1.0.1:8080"}, 0},
		{"neither is ready", aSlice("vm-1", ofService("vm"), ep("10.1.0.1", source, unready),
			ep("10.1.0.1", target, unready)), []string{}, 0},
		{"the target is ready", aSlice("vm-1", ofService("vm"), ep("10.1.0.1", target),
			ep("10.1.0.1", source, unready)), []string{"10.1.0.1:8080"}, 1},
		{"the source terminates", aSlice("vm-1", ofService("vm"), ep("10.1.0.1", target),
			ep("10.1.0.1", source, dead)), []string{"10.1.0.1:8080"}, 1},
		{"the source has gone", aSlice("vm-1", ofService("vm"), ep("10.1.0.1", target)), []string{"10.1.0.1:8080"}, 1},
	} {
		w.change([]metav1.Object{step.slice}...)
		require.Equal(t, step.cluster, w.clusterSet("vm"), step.name)
		require.Equal(t, step.local, w.mustService("vm").HealthCheck.LocalEndpoints.IPv4, step.name)
	}
}

// The slice of the API server's own service has a label that is for the mirroring controller.
func TestASliceThatIsNotToBeMirroredIsUsed(t *testing.T) {
	w := newWorld(t, aService("kubernetes"), aSlice("kubernetes", ofService("kubernetes"), ep("192.0.2.10"),
		func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelSkipMirror] = "true" }))
	require.Equal(t, []string{"192.0.2.10:8080"}, w.clusterSet("kubernetes"))
}

func TestAServiceGainsAndLosesAFamily(t *testing.T) {
	six := aSlice("web-6", ofType("IPv6"), ep("fd01::1"))
	w := newWorld(t, aService("web"), aSlice("web-4", ep("10.1.0.1")), six)
	require.Equal(t, []string{"10.1.0.1:8080"}, w.clusterSet("web"))
	for range 2 {
		w.change(aService("web", clusterIPs("10.0.0.1", "fd00::1")))
		require.Equal(t, []string{"10.1.0.1:8080", "[fd01::1]:8080"}, w.clusterSet("web"))
		require.True(t, w.mustService("web").ClusterIP(model.IPv6).IsValid())
		w.change(aService("web"))
		require.Equal(t, []string{"10.1.0.1:8080"}, w.clusterSet("web"))
		require.False(t, w.mustService("web").ClusterIP(model.IPv6).IsValid())
	}
}

// A service with endpoints that terminate is deleted; another one has the same pods.
func TestAServiceThatGoesWhileItsPodsTerminateLeavesOthersAlone(t *testing.T) {
	pods := []sliceOption{ep("10.1.0.1", draining), ep("10.1.0.2")}
	stays := aSlice("stays-1", append(pods, ofService("stays"))...)
	goes := aSlice("goes-1", append(pods, ofService("goes"))...)
	w := newWorldWith(t, options{Options{NodeName: me, DrainingEndpoints: true}, ClusterOptions{}},
		aService("stays"), aService("goes", clusterIPs("10.0.0.2")), stays, goes)
	before := w.endpoints("stays")
	require.Len(t, before, 2)
	w.delete(aService("goes"), goes)
	w.flush()
	require.Empty(t, w.endpoints("goes"))
	require.Equal(t, before, w.endpoints("stays"))
	w.delete(aService("stays"), stays)
	w.flush()
	requireNothingKept(t, w.state)
}

// A thousand services with new names are added and deleted, again and again. Their memory must be freed.
func TestAThousandServicesThatComeAndGoTakeNoMemory(t *testing.T) {
	state := newWorld(t).state
	round := func(n int) int {
		var objects []metav1.Object
		for i := range 1000 {
			name := fmt.Sprintf("job-%d-%d", n, i)
			objects = append(objects, aService(name, clusterIPs(fmt.Sprintf("10.%d.%d.%d", 16+n, i/250, 1+i%250))),
				aSlice(name+"-a", ofService(name), ep("10.1.0.1", local), ep("10.1.0.2", unready)),
				aSlice(name+"-f", ofService(name), ofType("FQDN"), ep("db.example.net")))
		}
		got := newMirror()
		for _, deleted := range []bool{false, true} {
			for _, obj := range objects {
				_, err := state.Apply(obj, deleted)
				require.NoError(t, err)
			}
			state.Flush(got)
		}
		require.Empty(t, got.services)
		return testkit.LiveHeap()
	}
	round(0)
	early := round(1)
	for n := range 8 {
		round(2 + n)
	}
	late := round(10)
	requireNothingKept(t, state)
	require.Empty(t, state.ignored)
	require.Less(t, late, early+1<<20, "a round takes several MB")
}
