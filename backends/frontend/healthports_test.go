package frontend

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func withHealthCheck(name string, ip int, port uint16) *model.Service {
	s := fakemodel.Service(name).ClusterIP(fmt.Sprintf("10.96.0.%d", ip)).Port("http", 80).Build()
	s.HealthCheck = &model.HealthCheck{NodePort: port}
	return s
}

func taking(name string, ip int, port uint16) *model.Service {
	return fakemodel.Service(name).ClusterIP(fmt.Sprintf("10.96.0.%d", ip)).Port("http", 80).NodePort(port).Build()
}

// The health check port of a service is another service's node port: this is reported once, whichever of the two comes
// first, and again when it happens again.
func TestAHealthCheckPortThatIsANodePortIsReportedOnce(t *testing.T) {
	lb, taker := withHealthCheck("default/lb", 1, 31000), taking("default/taker", 2, 31000)
	const message = "load balancers do not reach the service's health check: port 31000 is the node port of " +
		"default/taker:http/TCP"
	for _, order := range [][]any{{lb, taker}, {taker, lb}} {
		r := newRig(t)
		changed := map[string]bool{}
		r.ReportProblems(func(name model.ServiceName, any bool) { changed[name.String()] = any })
		for _, s := range order {
			require.Empty(t, r.problems)
			r.set(s)
			r.sync(t)
		}
		require.Len(t, r.problems, 1)
		assert.Equal(t, Problem{Family: model.IPv4, Port: lb.PortName(lb.Ports[0]), Reason: HealthCheckPortInUse,
			Owner: taker.PortName(taker.Ports[0]), Message: message}, r.problems[0])
		assert.Equal(t, map[string]bool{"default/lb": true}, changed)
		assert.Equal(t, []string{message}, r.Problems(lb.Name))

		again := *lb
		again.LoadBalancerIPs = append(again.LoadBalancerIPs, netip.MustParseAddr("203.0.113.1"))
		r.set(&again)
		r.sync(t)
		require.Len(t, r.problems, 1, "it has changed in something else")

		renamed := *lb
		renamed.Ports = slices.Clone(lb.Ports)
		renamed.Ports[0].Name = "web"
		r.set(&renamed)
		r.sync(t)
		assert.Equal(t, []string{message}, r.Problems(lb.Name))
		assert.Len(t, r.services[lb.Name].problems, 1)
		r.problems = r.problems[:1]

		r.DeleteService(taker.Name)
		r.sync(t)
		assert.Empty(t, r.Problems(lb.Name))
		assert.False(t, changed["default/lb"])
		r.set(taker)
		r.sync(t)
		require.Len(t, r.problems, 2, "it happens again")

		moved := again
		moved.HealthCheck = &model.HealthCheck{NodePort: 31001}
		r.set(&moved)
		r.sync(t)
		assert.Empty(t, r.Problems(lb.Name))
		r.set(taking("default/third", 3, 31001))
		r.sync(t)
		require.Len(t, r.problems, 3)
		r.DeleteService(lb.Name)
		r.sync(t)
		assert.False(t, changed["default/lb"])
	}
}

func TestANodePortOfAnotherProtocolHidesNoHealthCheck(t *testing.T) {
	r := newRig(t)
	r.set(withHealthCheck("default/lb", 1, 31000),
		fakemodel.Service("default/dns").ClusterIP("10.96.0.2").UDPPort("dns", 53).NodePort(31000).Build())
	r.sync(t)
	assert.Empty(t, r.problems)
}
