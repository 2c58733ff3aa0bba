package remote

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// The total is stored, because each Sync needs it: it equals the result of counting all services.
func TestTheTotalIsThatOfAllServices(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var n noLocal
	all := map[model.ServiceName]*sink.ServiceEntry{}
	for range 500 {
		name := name(fmt.Sprint("service-", random.IntN(10)))
		c := sink.Change{Name: name, Old: all[name]}
		if delete(all, name); random.IntN(3) > 0 {
			policy := func() model.TrafficPolicy {
				return []model.TrafficPolicy{model.TrafficPolicyCluster, model.TrafficPolicyLocal}[random.IntN(2)]
			}
			s := &model.Service{Name: name, Ports: make([]model.ServicePort, random.IntN(3))}
			for i := range s.Ports {
				s.Ports[i] = model.ServicePort{Name: fmt.Sprint(i), Protocol: model.TCP, Port: 80,
					Routes: model.PerFamily[model.Routes]{
						IPv4: model.NewRoutes(model.RoutePolicy{ClusterIP: true, ExternalAddresses: true,
							Internal: policy(), External: policy()})}}
			}
			c.New = &sink.ServiceEntry{Service: s}
			all[name] = c.New
		}
		n.note(c)
		var want localstate.NoLocalEndpoints
		for _, e := range all {
			count := countNoLocal(e)
			want.Internal.IPv4 += count.Internal.IPv4
			want.External.IPv4 += count.External.IPv4
		}
		require.Equal(t, want, n.total)
	}
	require.NotZero(t, n.total)
}
