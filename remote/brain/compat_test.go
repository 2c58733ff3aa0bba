package brain

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// recordedObjects returns the objects of the cluster in ../testdata/session-0.1.json, whose second replica is ahead by
// a change.
func recordedObjects(changing string) []metav1.Object {
	return append(baseObjects(),
		kube.ServiceCIDR("main", "10.96.0.0/16"),
		kube.Service("default/rich").UID("u").Created(time.Unix(1700000000, 0)).ClusterIP("10.96.0.1", "fd00::1").
			Port("http", 80).NodePort(30080).UDPPort("dns", 53).Type(corev1.ServiceTypeLoadBalancer).
			LoadBalancerIP("203.0.113.7").ExternalIP("198.51.100.1").SourceRange("192.0.2.0/24").ExternalLocal().
			InternalLocal().HealthCheckNodePort(31000).Affinity(100).Label("a", "b").Annotation("c", "d").Build(),
		kube.EndpointSlice("default/rich").Port("http", 8080).UDPPort("dns", 5353).
			Endpoint("10.244.1.1").OnNode("n1").Endpoint("10.244.2.1").OnNode("n2").NotReady().
			Endpoint("10.244.3.1").OnNode("n3").Terminating().Build(),
		kube.Service("default/zones").ClusterIP("10.96.0.2").Port("http", 80).Build(),
		kube.EndpointSlice("default/zones").Port("http", 8080).
			Endpoint("10.244.1.2").OnNode("n1").ForZones("a").Endpoint("10.244.2.2").OnNode("n2").ForZones("b").Build(),
		kube.Service("default/nodes").ClusterIP("10.96.0.3").Port("http", 80).Build(),
		kube.EndpointSlice("default/nodes").Port("http", 8080).Endpoint("10.244.1.3").OnNode("n1").ForNodes("n1").
			Endpoint("10.244.2.3").OnNode("n2").ForNodes("n2").Build(),
		kube.Service("default/changing").ClusterIP("10.96.0.4").Port("http", 80).Build(),
		kube.EndpointSlice("default/changing").Port("http", 8080).Endpoint(changing).OnNode("n3").Build(),
	)
}

// TestAClientOfVersion01IsUnderstood: what a client of version 0.1 says, whose bytes are recorded, is answered as then.
func TestAClientOfVersion01IsUnderstood(t *testing.T) {
	var streams [][]struct{ Client, Server []byte }
	text, err := os.ReadFile("../testdata/session-0.1.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &streams))
	var says [3][]*remotev1.Request
	for i, stream := range streams {
		for _, m := range stream {
			r := &remotev1.Request{}
			if m.Client != nil {
				require.NoError(t, proto.Unmarshal(m.Client, r))
				says[i] = append(says[i], r)
			}
		}
	}
	changed := serve(t, Options{Source: newCluster(recordedObjects("10.244.3.4")...)}, socket(t))
	ahead := serve(t, Options{Source: newCluster(recordedObjects("10.244.3.9")...)}, socket(t))

	first := receiveBatch(t, rawStream(t, changed.target, says[0][0].Hello))
	assert.Equal(t, remotev1.Kind_RESET, first[0].Kind)
	resumed := receiveBatch(t, rawStream(t, changed.target, says[1][0].Hello))
	assert.Equal(t, remotev1.Kind_RESUMED, resumed[0].Kind, "it has what this server has, says its digest")
	stream := rawStream(t, ahead.target, says[2][0].Hello)
	for _, digests := range says[2][1:3] {
		u, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, remotev1.Kind_COMPARE, u.Kind)
		require.NoError(t, stream.Send(digests))
	}
	differs := receiveBatch(t, stream)
	assert.Equal(t, remotev1.Kind_DIFF, differs[0].Kind)
	require.Len(t, differs[0].Services, 1)
	assert.Equal(t, "changing", differs[0].Services[0].Name)
}
