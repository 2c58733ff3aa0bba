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
			if lacks(p.Routes(f).ClusterIP) {
				*n.Internal.At(f)++
			}
			if lacks(p.Routes(f).External) {
				*n.External.At(f)++
			}
		}
	}
	return n
}

func (n noLocal) total() localstate.NoLocalEndpoints {
	var sum localstate.NoLocalEndpoints
	for c := range maps.Values(n) {
		for _, f := range model.Families() {
			*sum.Internal.At(f) += *c.Internal.At(f)
			*sum.External.At(f) += *c.External.At(f)
		}
	}
	return sum
}
