package brain

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// All nodes of a brain get the endpoints that it holds, also those that connect meanwhile (S66). A brain that has never
// seen an endpoint holds none.
func TestNodesOfABrainHoldTheLastEndpoints(t *testing.T) {
	c := newCluster(slices.Concat(baseObjects(), web("api", "10.0.0.1", "10.0.0.2"), web("other", "10.0.0.3"))...)
	c.set(naming("b"))
	opts := Options{Source: c, Cluster: localstate.ClusterOptions{HoldEndpoints: []model.ServiceName{name("api")}},
		limits: limits{minInterval: -1}}
	server := serve(t, opts, socket(t))
	nodes := map[string]*sink.Recorder{}
	join := func(server *replica, node string) {
		nodes[node] = &sink.Recorder{}
		follow(t, nodes[node], remote.Options{Targets: []string{server.target},
			State: localstate.Options{NodeName: node}})
	}
	// marker is the last service by name, so everything else has come with it.
	await := func(node, marker string, want ...string) {
		t.Helper()
		slices.Sort(want)
		require.Eventually(t, func() bool {
			_, there := nodes[node].Services()[name(marker)]
			var got []string
			for key := range nodes[node].Endpoints() {
				got = append(got, key.Port.Service.Name+" "+key.Target.String())
			}
			slices.Sort(got)
			return there && slices.Equal(want, got)
		}, testTimeout, time.Millisecond, "node %s", node)
	}
	all := []string{"api 10.0.0.1:8080", "api 10.0.0.2:8080", "other 10.0.0.3:8080"}
	join(server, "n1")
	await("n1", "api", all...)

	for _, slice := range []metav1.Object{web("api")[1], web("other")[1]} {
		c.delete(slice)
	}
	c.set(web("z1")...)
	await("n1", "z1", all[:2]...)
	join(server, "n2") // of another zone: a class that is made now
	await("n2", "z1", all[:2]...)

	late := serve(t, opts, socket(t))
	join(late, "n3")
	await("n3", "z1")

	c.set(web("api", "10.0.0.9")...)
	c.set(web("z2")...)
	for node := range nodes {
		await(node, "z2", "api 10.0.0.9:8080")
	}
}
