package model_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// TestEndpointsWithTheSameDetailsAreIdentical: endpoints with details can be compared with ==, too, however they were
// made.
func TestEndpointsWithTheSameDetailsAreIdentical(t *testing.T) {
	a, b := richEndpoint(), richEndpoint()
	require.True(t, *a == *b)
	text, err := json.Marshal(a)
	require.NoError(t, err)
	var c model.Endpoint
	require.NoError(t, json.Unmarshal(text, &c))
	assert.True(t, *a == c)

	details := a.Details.Get()
	details.ZoneHints[0] = "zone-c"
	assert.True(t, *a == *b, "the lists are the caller's own")
	b.Details = model.NewDetails(details)
	assert.False(t, *a == *b)
	assert.Equal(t, details, b.Details.Get())
}

func TestEmptyDetails(t *testing.T) {
	assert.True(t, model.NewDetails(model.EndpointDetails{}).IsZero())
	assert.True(t, model.NewDetails(model.EndpointDetails{NodeHints: []string{""}, ZoneHints: []string{}}).IsZero())
	assert.Equal(t, model.EndpointDetails{}, model.Details{}.Get())
	text, err := json.Marshal(&model.Endpoint{Port: model.PortName{Protocol: model.TCP},
		Target: addrPort("10.0.0.1:80")})
	require.NoError(t, err)
	assert.NotContains(t, string(text), "details")

	d := richEndpoint().Details
	require.NoError(t, json.Unmarshal([]byte("null"), &d))
	assert.Equal(t, richEndpoint().Details, d, "null changes nothing")
	require.NoError(t, json.Unmarshal([]byte("{}"), &d))
	assert.True(t, d.IsZero())
	assert.Error(t, json.Unmarshal([]byte(`{"zone":1}`), &d))
}

func TestHintsWithoutANameAreLeftOut(t *testing.T) {
	d := model.NewDetails(model.EndpointDetails{NodeHints: []string{"", "node-1", "", "node-2", ""},
		ZoneHints: []string{"zone-a"}})
	assert.Equal(t, model.EndpointDetails{NodeHints: []string{"node-1", "node-2"}, ZoneHints: []string{"zone-a"}},
		d.Get())
}

func TestTargetRefText(t *testing.T) {
	for text, ref := range map[string]model.TargetRef{
		"":               {},
		"Pod shop/web-0": {Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "1"},
		"Node node-1":    {Kind: "Node", Name: "node-1"},
		"shop/web-0":     {Namespace: "shop", Name: "web-0"},
	} {
		assert.Equal(t, text, ref.String())
	}
}

func TestDraining(t *testing.T) {
	for _, e := range []struct {
		endpoint model.Endpoint
		draining bool
	}{
		{model.Endpoint{Serving: true, Terminating: true}, true},
		{model.Endpoint{Terminating: true}, false},
		{model.Endpoint{Serving: true}, false},
		{model.Endpoint{Ready: true, Serving: true, Terminating: true}, false},
	} {
		assert.Equal(t, e.draining, e.endpoint.Draining(), "%v", &e.endpoint)
	}
}
