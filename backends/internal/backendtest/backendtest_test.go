package backendtest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestNoTwoServicesOrPodsOfAClusterHaveTheSameAddress(t *testing.T) {
	c := backendtest.ClusterSize{Services: 3000, Endpoints: 16}
	seen := map[string]bool{}
	once := func(address string) {
		assert.False(t, seen[address], address)
		seen[address] = true
	}
	local := 0
	for i := range c.Services {
		once(c.Service(i).ClusterIPs[0].String())
		for j := range c.Endpoints {
			ep := c.Endpoint(i, j)
			once(ep.Target.Addr().String())
			if ep.Local {
				local++
				assert.True(t, c.Node().LocalPods.CIDRs[0].Contains(ep.Target.Addr()))
			}
		}
	}
	assert.Equal(t, c.Services/100, local)
}

// transcript records the calls that it gets.
type transcript []any

func (l *transcript) SetNode(n *model.Node)              { *l = append(*l, n) }
func (l *transcript) SetService(s *model.Service)        { *l = append(*l, s) }
func (l *transcript) SetEndpoint(ep *model.Endpoint)     { *l = append(*l, ep) }
func (l *transcript) DeleteService(n model.ServiceName)  { *l = append(*l, n) }
func (l *transcript) DeleteEndpoint(k model.EndpointKey) { *l = append(*l, k) }

func TestNodesServicesAndEndpointsAreDescribed(t *testing.T) {
	c := backendtest.ClusterSize{Services: 1, Endpoints: 2}
	var one, all transcript
	backendtest.Set(t, &one, c.Node(), c.Service(0), c.Endpoint(0, 0), c.Endpoint(0, 1))
	c.Set(&all)
	assert.Len(t, one, 4)
	assert.Equal(t, one, all)
}

func TestEverySecondWaveTakesTheOneBeforeBack(t *testing.T) {
	c := backendtest.ClusterSize{Services: 2, Endpoints: 1}
	var replaced, added transcript
	for n := range 2 {
		c.ReplaceEndpoint(&replaced, n)
		c.AddOrDeleteService(&added, n)
	}
	one, other := c.Endpoint(0, 3), c.Endpoint(0, 14)
	assert.Equal(t, transcript{one.Key(), other, other.Key(), one}, replaced)
	assert.Equal(t, transcript{c.Service(2), c.Endpoint(2, 0), c.Endpoint(2, 0).Key(), c.Service(2).Name}, added)
}

func TestTheNodeIsOneThatTheModelTakes(t *testing.T) {
	checked, err := model.NewNode(*backendtest.Node())
	assert.NoError(t, err)
	assert.Equal(t, checked, backendtest.Node())
}

func TestNumberIsTheVariableIfItIsSet(t *testing.T) {
	t.Setenv("KPL_BACKENDTEST", "")
	assert.Equal(t, 7, backendtest.Number(t, "KPL_BACKENDTEST", 7))
	t.Setenv("KPL_BACKENDTEST", "12")
	assert.Equal(t, 12, backendtest.Number(t, "KPL_BACKENDTEST", 7))
}
