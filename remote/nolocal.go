package remote

import (
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// noLocal counts the ports with a Local policy that have endpoints, but none on this node. The zero value counts none.
type noLocal struct {
	services map[model.ServiceName]localstate.NoLocalEndpoints
	total    localstate.NoLocalEndpoints
}

func (n *noLocal) note(c sink.Change) {
	var count localstate.NoLocalEndpoints
	if c.New != nil {
		count = countNoLocal(c.New)
	}
	n.add(n.services[c.Name], -1)
	n.add(count, 1)
	if count == (localstate.NoLocalEndpoints{}) {
		delete(n.services, c.Name)
		return
	}
	if n.services == nil {
		n.services = map[model.ServiceName]localstate.NoLocalEndpoints{}
	}
	n.services[c.Name] = count
}

func (n *noLocal) add(count localstate.NoLocalEndpoints, sign int) {
	for _, f := range model.Families() {
		*n.total.Internal.At(f) += sign * *count.Internal.At(f)
		*n.total.External.At(f) += sign * *count.External.At(f)
	}
}

// countNoLocal counts from the routes: if one balances over the local set and drops when that is empty, there are
// endpoints on other nodes.
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
			if lacks(p.Routes.At(f).ClusterIP) {
				*n.Internal.At(f)++
			}
			if lacks(p.Routes.At(f).External) {
				*n.External.At(f)++
			}
		}
	}
	return n
}
