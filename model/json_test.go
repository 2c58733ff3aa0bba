package model_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

var update = flag.Bool("update", false, "write the golden files")

// equaler is a type of the model.
type equaler[T any] interface {
	*T
	Equal(*T) bool
	String() string
}

func TestJSONOfEveryField(t *testing.T) {
	t.Run("Service", func(t *testing.T) { keepsEveryField[model.Service](t, richService) })
	t.Run("Endpoint", func(t *testing.T) { keepsEveryField[model.Endpoint](t, richEndpoint) })
	t.Run("Node", func(t *testing.T) { keepsEveryField[model.Node](t, richNode) })
	roundTrip[model.Service](t, &model.Service{})
	roundTrip[model.Node](t, &model.Node{})
}

func keepsEveryField[T any, P equaler[T]](t *testing.T, rich func() *T) {
	roundTrip[T, P](t, rich())
	eachChange(t, rich, func(t *testing.T, _, changed *T) { roundTrip[T, P](t, changed) })
}

func roundTrip[T any, P equaler[T]](t *testing.T, v *T) {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	back := new(T)
	require.NoError(t, json.Unmarshal(text, back), "%s", text)
	assert.True(t, P(back).Equal(v), "%s", text)
}

// The golden files are the documentation of the JSON form, whose names are stable.
func TestJSONGolden(t *testing.T) {
	t.Run("service", func(t *testing.T) { golden[model.Service](t, richService()) })
	t.Run("endpoint", func(t *testing.T) { golden[model.Endpoint](t, richEndpoint()) })
	t.Run("node", func(t *testing.T) { golden[model.Node](t, richNode()) })
	t.Run("service-small", func(t *testing.T) {
		s, err := model.NewService(model.Service{
			Name: model.ServiceName{Namespace: "default", Name: "db"}, ClusterIPs: addrs("10.0.0.2"),
			Ports: []model.ServicePort{{Protocol: model.TCP, Port: 5432}},
		})
		require.NoError(t, err)
		golden[model.Service](t, s)
	})
	t.Run("endpoint-small", func(t *testing.T) {
		golden[model.Endpoint](t, &model.Endpoint{
			Port:   model.PortName{Service: model.ServiceName{Namespace: "default", Name: "db"}, Protocol: model.TCP},
			Target: addrPort("10.244.2.3:5432"),
		})
	})
	t.Run("node-small", func(t *testing.T) { golden[model.Node](t, &model.Node{Name: "node-1"}) })
}

func golden[T any, P equaler[T]](t *testing.T, v *T) {
	text, err := json.MarshalIndent(v, "", "  ")
	require.NoError(t, err)
	text = append(text, '\n')
	file := filepath.Join("testdata", filepath.Base(t.Name())+".json")
	if *update {
		require.NoError(t, os.WriteFile(file, text, 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	want = bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n")) // as a checkout on Windows may have it
	assert.Equal(t, string(want), string(text))

	back := new(T)
	require.NoError(t, json.Unmarshal(want, back))
	assert.True(t, P(back).Equal(v))
}

func TestSessionAffinityTimeoutIsText(t *testing.T) {
	for text, timeout := range map[string]time.Duration{
		`{}`:                                        0,
		`{"sessionAffinityTimeout":""}`:             0,
		`{"sessionAffinityTimeout":"3h0m0s"}`:       3 * time.Hour,
		`{"sessionAffinityTimeout":"90s"}`:          90 * time.Second,
		`{"sessionAffinityTimeout":"1.5h"}`:         90 * time.Minute,
		`{"sessionAffinityTimeout":"0.000000001s"}`: 1,
	} {
		s := model.Service{SessionAffinityTimeout: time.Minute}
		require.NoError(t, json.Unmarshal([]byte(text), &s), text)
		assert.Equal(t, timeout, s.SessionAffinityTimeout, text)
	}
	var s model.Service
	err := json.Unmarshal([]byte(`{"name":{"namespace":"shop","name":"web"},"sessionAffinityTimeout":"soon"}`), &s)
	assert.ErrorContains(t, err, `service shop/web: session affinity timeout: time: invalid duration "soon"`)
	assert.Error(t, json.Unmarshal([]byte(`{"sessionAffinityTimeout":10800}`), &s), "a number would be ambiguous")
}

func TestUnmarshalReplacesAService(t *testing.T) {
	s := richService()
	require.NoError(t, json.Unmarshal([]byte(`null`), s))
	assert.True(t, s.Equal(richService()), "null changes nothing")
	require.NoError(t, json.Unmarshal([]byte(`{"name":{"name":"other"}}`), s))
	assert.True(t, s.Equal(&model.Service{Name: model.ServiceName{Name: "other"}}))
	before := richService()
	require.Error(t, json.Unmarshal([]byte(`{"name":5}`), before))
	require.Error(t, json.Unmarshal([]byte(`{"sessionAffinityTimeout":"soon"}`), before))
	assert.True(t, before.Equal(richService()), "an error changes nothing")
}

func TestTextOfEnumerations(t *testing.T) {
	type texter interface {
		MarshalText() ([]byte, error)
		String() string
	}
	type parser interface{ UnmarshalText([]byte) error }
	for _, c := range []struct {
		value texter
		parse parser // a pointer to a value of the type
		text  string
	}{
		{model.TCP, new(model.Protocol), "TCP"},
		{model.UDP, new(model.Protocol), "UDP"},
		{model.SCTP, new(model.Protocol), "SCTP"},
		{model.TrafficPolicyCluster, new(model.TrafficPolicy), "Cluster"},
		{model.TrafficPolicyLocal, new(model.TrafficPolicy), "Local"},
		{model.ServiceTypeClusterIP, new(model.ServiceType), "ClusterIP"},
		{model.ServiceTypeNodePort, new(model.ServiceType), "NodePort"},
		{model.ServiceTypeLoadBalancer, new(model.ServiceType), "LoadBalancer"},
		{model.ServiceTypeExternalName, new(model.ServiceType), "ExternalName"},
		{model.EndpointSets(0), new(model.EndpointSets), "-"},
		{model.ClusterSet, new(model.EndpointSets), "Cluster"},
		{model.LocalSet, new(model.EndpointSets), "Local"},
		{model.ClusterSet | model.LocalSet, new(model.EndpointSets), "Cluster,Local"},
		{model.MasqueradeNever, new(model.Masquerade), "Never"},
		{model.MasqueradeAlways, new(model.Masquerade), "Always"},
		{model.MasqueradeUnlessLocalPod, new(model.Masquerade), "UnlessLocalPod"},
		{model.Reject, new(model.Verdict), "Reject"},
		{model.Drop, new(model.Verdict), "Drop"},
	} {
		assert.Equal(t, c.text, c.value.String())
		text, err := c.value.MarshalText()
		require.NoError(t, err)
		assert.Equal(t, c.text, string(text))
		require.NoError(t, c.parse.UnmarshalText(text))
		assert.Equal(t, c.text, c.parse.(texter).String())

		// Unknown text is an error and leaves the value alone.
		for _, bad := range []string{"tcp", "cluster", "Cluster,", "Cluster, Local", "Remote", "0"} {
			assert.Error(t, c.parse.UnmarshalText([]byte(bad)), "%T %q", c.value, bad)
			assert.Equal(t, c.text, c.parse.(texter).String())
		}
	}
	for text, unknown := range map[string]texter{
		"Protocol(7)": model.Protocol(7), "ServiceType(9)": model.ServiceType(9),
		"TrafficPolicy(2)": model.TrafficPolicy(2), "EndpointSets(0x4)": model.EndpointSets(4),
		"Masquerade(3)": model.Masquerade(3), "Verdict(2)": model.Verdict(2),
	} {
		assert.Equal(t, text, unknown.String())
		_, err := unknown.MarshalText()
		assert.Error(t, err, text)
	}
	var unset model.ServiceType
	for _, v := range []parser{new(model.Protocol), new(model.TrafficPolicy), new(model.EndpointSets),
		new(model.Masquerade), new(model.Verdict)} {
		assert.Error(t, v.UnmarshalText(nil), "%T", v)
	}
	require.NoError(t, unset.UnmarshalText(nil))
	assert.Empty(t, unset.String(), "a type that is not known has no name")
	var sets model.EndpointSets
	require.NoError(t, sets.UnmarshalText([]byte("Local,Cluster")))
	assert.Equal(t, model.ClusterSet|model.LocalSet, sets)

	p, err := model.ParseProtocol("SCTP")
	require.NoError(t, err)
	assert.Equal(t, model.SCTP, p)
	_, err = model.ParseProtocol("ICMP")
	assert.EqualError(t, err, `unknown protocol "ICMP"`)
	assert.Equal(t, "IPv4 IPv6 Family(0)", model.IPv4.String()+" "+model.IPv6.String()+" "+model.Family(0).String())
}
