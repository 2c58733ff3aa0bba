package remote

import (
	"maps"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// noLocal counts, by service, the ports with a Local policy that have endpoints, but none on this node.
type noLocal map[model.ServiceName]localstate.NoLocalEndpoints

func (n noLocal) note(c sink.Change) {
	var count localstate.NoLocalEndpoints
	if c.New != nil {
		count = countNoLocal(c.New)
	}
	if count == (localstate.NoLocalEndpoints{}) {
		delete(n, c.Name)
	} else {
		n[c.Name] = count
	}
}

// countNoLocal goes by the routes: one that balances over the Local set and drops if that is empty has endpoints
// elsewhere.
func countNoLocal(e *sink.ServiceEntry) localstate.NoLocalEndpoints {
	var n localstate.NoLocalEndpoints
	for _, p := range e.Service.Ports {
		for _, f := range model.Families() {
			lacks := func(r model.Route) bool {
				if r.Endpoints != model.LocalSet || r.Empty != model.Drop {
					return false
				}
				for range e.SetEndpoints(p.Name, p.Protocol, f, model.LocalSet) {
					return false
				}
				return true
			}
			internal, external := &n.InternalIPv4, &n.ExternalIPv4
			if f == model.IPv6 {
				internal, external = &n.InternalIPv6, &n.ExternalIPv6
			}
			if lacks(p.Routes(f).ClusterIP) {
				*internal++
			}
			if lacks(p.Routes(f).External) {
				*external++
			}
		}
	}
	return n
}

func (n noLocal) total() localstate.NoLocalEndpoints {
	var sum localstate.NoLocalEndpoints
	for c := range maps.Values(n) {
		sum.InternalIPv4 += c.InternalIPv4
		sum.InternalIPv6 += c.InternalIPv6
		sum.ExternalIPv4 += c.ExternalIPv4
		sum.ExternalIPv6 += c.ExternalIPv6
	}
	return sum
}
