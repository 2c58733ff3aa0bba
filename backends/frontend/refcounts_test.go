package frontend_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// flows is a dataplane as OVS is one: services share the flow of an endpoint.
type flows struct {
	installed map[netip.AddrPort]bool
	users     frontend.RefCounts[netip.AddrPort]
	refuse    map[model.PortName]bool
	writes    int // of flows
}

func (f *flows) apply(_ context.Context, c *frontend.Changes) error {
	for p := range c.Ports() {
		if f.refuse[p.Name()] {
			p.Refuse(p.Before, errors.New("OFPGMFC_OUT_OF_BUCKETS"))
			continue
		}
		for _, e := range p.EndpointChanges(model.ClusterSet) {
			if e.After != nil && f.users.Add(e.After.Target) {
				f.installed[e.After.Target] = true
				f.writes++
			}
			if e.Before != nil && f.users.Remove(e.Before.Target) {
				delete(f.installed, e.Before.Target)
				f.writes++
			}
		}
	}
	return nil
}

func TestServicesShareTheFlowOfAnEndpoint(t *testing.T) {
	f := &flows{installed: map[netip.AddrPort]bool{}, refuse: map[model.PortName]bool{}}
	table, err := frontend.New(frontend.Options{Families: []model.Family{model.IPv4}, Apply: f.apply})
	require.NoError(t, err)
	endpoint := func(service, target string) *model.Endpoint {
		return fm.Endpoint("default/"+service+":http/TCP", target).Build()
	}
	installed := func() (list []string) {
		for target := range maps.Keys(f.installed) {
			list = append(list, target.String())
		}
		slices.Sort(list)
		return list
	}
	for i, name := range []string{"a", "b"} {
		table.SetService(fm.Service("default/"+name).ClusterIP("10.96.0."+string(rune('1'+i))).Port("http", 80).Build())
		table.SetEndpoint(endpoint(name, "10.1.0.1:80"))
	}
	require.NoError(t, table.Sync(t.Context()))
	assert.Equal(t, []string{"10.1.0.1:80"}, installed())
	assert.Equal(t, 1, f.writes, "once for both")

	table.DeleteEndpoint(endpoint("a", "10.1.0.1:80").Key())
	table.SetEndpoint(endpoint("a", "10.1.0.2:80"))
	require.NoError(t, table.Sync(t.Context()))
	assert.Equal(t, []string{"10.1.0.1:80", "10.1.0.2:80"}, installed(), "the other service still uses it")

	b := model.PortName{Service: model.ServiceName{Namespace: "default", Name: "b"}, Port: "http",
		Protocol: model.TCP}
	f.refuse[b] = true
	table.DeleteEndpoint(endpoint("b", "10.1.0.1:80").Key())
	require.Len(t, sink.PortErrors(table.Sync(t.Context())), 1)
	assert.Equal(t, []string{"10.1.0.1:80", "10.1.0.2:80"}, installed(), "a port that was refused still uses it")
	f.refuse[b] = false
	table.ResyncFailed()
	require.NoError(t, table.Sync(t.Context()))
	assert.Equal(t, []string{"10.1.0.2:80"}, installed())
	assert.Equal(t, 3, f.writes)
	assert.Len(t, f.users, 1)

	assert.False(t, f.users.Remove(netip.MustParseAddrPort("10.1.0.9:80")), "what has no users does not lose the last")
	assert.Len(t, f.users, 1)
}
