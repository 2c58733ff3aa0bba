package page

import (
	"cmp"
	"strings"

	"github.com/tidwall/btree"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// status is the status of a service.
type status string

const (
	statusOK       status = "ok"
	statusFailing  status = "failing"  // the backend could not apply it
	statusUnserved status = "unserved" // the backend does not serve a part of it, such as an address of another service
	statusEmpty    status = "empty"    // traffic of some kind is rejected or dropped, because it has no endpoint
)

// rank orders the statuses, the worst first.
func (s status) rank() int {
	switch s {
	case statusFailing:
		return 0
	case statusUnserved:
		return 1
	}
	return 2
}

// problem is what is wrong with a service.
type problem struct {
	Service model.ServiceName `json:"service"`
	Status  status            `json:"status"`
	Text    string            `json:"text"`
}

func (p problem) compare(o problem) int {
	return cmp.Or(cmp.Compare(p.Status.rank(), o.Status.rank()), p.Service.Compare(o.Service))
}

// problems has what is wrong with each service that has a problem, the worst first. A copy shares what it has in common
// with the original, so what a Sync costs follows what changed.
type problems struct {
	list   *btree.BTreeG[problem]
	counts [3]int // by rank
}

func newProblems() problems {
	return problems{list: btree.NewBTreeGOptions(
		func(a, b problem) bool { return a.compare(b) < 0 }, btree.Options{NoLocks: true, Degree: 8})}
}

// copy returns a copy that does not change.
func (p *problems) copy() problems { return problems{p.list.Copy(), p.counts} }

func (p *problems) len() int { return p.list.Len() }

// get returns what is wrong with a service; its status is statusOK if nothing is.
func (p *problems) get(name model.ServiceName) problem {
	for _, s := range []status{statusFailing, statusUnserved, statusEmpty} {
		if found, ok := p.list.Get(problem{Service: name, Status: s}); ok {
			return found
		}
	}
	return problem{Service: name, Status: statusOK}
}

// set replaces what is wrong with a service, and reports whether that differs from before.
func (p *problems) set(next problem) bool {
	before := p.get(next.Service)
	if before == next {
		return false
	}
	if before.Status != statusOK {
		p.list.Delete(before)
		p.counts[before.Status.rank()]--
	}
	if next.Status != statusOK {
		p.list.Set(next)
		p.counts[next.Status.rank()]++
	}
	return true
}

// firstProblems returns the worst ones, at most n.
func (v *view) firstProblems(n int) []problem {
	p := &v.problems
	out := make([]problem, 0, min(n, p.len()))
	p.list.Scan(func(one problem) bool {
		if len(out) == n {
			return false
		}
		out = append(out, one)
		return true
	})
	for i := range out {
		out[i].Text = v.text(out[i])
	}
	return out
}

// text says what is wrong. For a part that is not served it asks the backend.
func (v *view) text(p problem) string {
	if r, ok := v.backend.(sink.ProblemReporter); ok && p.Status == statusUnserved {
		return shorten(strings.Join(r.Problems(p.Service), "; "))
	}
	return p.Text
}

// diagnose says what is wrong with a service; e is nil if it does not exist.
func diagnose(name model.ServiceName, e *sink.ServiceEntry, failing []*sink.PortError, unserved bool) problem {
	out := problem{Service: name, Status: statusOK}
	switch {
	case e == nil:
	case len(failing) > 0:
		out.Status, out.Text = statusFailing, beginning(failing, "; ")
	case unserved: // view.text knows what: it may change without anything of the service
		out.Status = statusUnserved
	default:
		if text := withoutEndpoints(e); text != "" {
			out.Status, out.Text = statusEmpty, text
		}
	}
	return out
}

// withoutEndpoints says which traffic to a service has no endpoint; "" if all has one.
func withoutEndpoints(e *sink.ServiceEntry) string {
	for i := range e.Service.Ports {
		p := &e.Service.Ports[i]
		for _, f := range model.Families() {
			if routes := *p.Routes.At(f); routes.Sets() != 0 {
				if text := emptyRoute(routes, setsInUse(e, p, f)); text != "" {
					return text
				}
			}
		}
	}
	return ""
}

// setsInUse returns the sets that have an endpoint of a port and family, as far as its routes use them. It checks no
// more endpoints than it has to.
func setsInUse(e *sink.ServiceEntry, p *model.ServicePort, f model.Family) (sets model.EndpointSets) {
	wanted := p.Routes.At(f).Sets()
	for _, ep := range e.PortEndpoints(p.Name, p.Protocol) {
		if ep.Family() == f {
			if sets |= ep.Sets; sets.Has(wanted) {
				break
			}
		}
	}
	return sets
}

// emptyRoute says which traffic has no endpoint. It is no problem if external traffic that must stay on this node finds
// no endpoint here, while there are some elsewhere: load balancers do not send it to this node (S25, S39).
func emptyRoute(r model.Routes, sets model.EndpointSets) string {
	for i, way := range []struct {
		traffic string
		route   model.Route
	}{
		{"traffic to the cluster IP", r.ClusterIP},
		{"traffic from outside", r.External},
		{"external traffic from pods of this node", r.ExternalFromPod},
		{"external traffic from the node", r.ExternalFromNode},
	} {
		elsewhere := i > 0 && way.route.Endpoints == model.LocalSet && way.route.Empty == model.Drop
		if way.route.Endpoints != 0 && !elsewhere && !sets.Has(way.route.Endpoints) {
			return way.traffic + " is " + verb(way.route.Empty)
		}
	}
	return ""
}
