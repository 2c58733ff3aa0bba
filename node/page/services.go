package page

import (
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// serviceList is what api/services returns: some of the matching services.
type serviceList struct {
	Revision uint64 `json:"revision"`
	// Total is the number of matches; Offset is the number of matches before the first one in Services.
	Total    int       `json:"total"`
	Offset   int       `json:"offset"`
	Services []summary `json:"services"`
}

// summary is a service in a list.
type summary struct {
	Name       model.ServiceName `json:"name"`
	Type       model.ServiceType `json:"type,omitempty"`
	ClusterIPs []netip.Addr      `json:"clusterIPs"`
	// Ports are the first ones, like "80/TCP"; MorePorts is the number of others.
	Ports     []string `json:"ports"`
	MorePorts int      `json:"morePorts,omitempty"`
	// Endpoints is the number of endpoints that get traffic, of the port and family with the most.
	Endpoints int    `json:"endpoints"`
	Status    status `json:"status"`
	// Problem says what is wrong, if anything is.
	Problem string `json:"problem,omitempty"`
}

const (
	defaultLimit, maxLimit = 100, 1000
	maxPortsListed         = 4
)

// query selects services.
type query struct {
	words         []string
	problems      bool
	offset, limit int
}

func newQuery(text string, problems bool, offset, limit int) query {
	if limit <= 0 {
		limit = defaultLimit
	}
	return query{strings.Fields(strings.ToLower(text)), problems, max(offset, 0), min(limit, maxLimit)}
}

// services returns the services that match a query, in the order of their names; those with problems the worst first.
func (v *view) services(q query) *serviceList {
	out := &serviceList{Revision: v.snapshot.Revision(), Offset: q.offset, Services: []summary{}}
	all := v.snapshot.Services()
	if q.problems {
		all = v.withProblems()
	}
	if len(q.words) == 0 {
		if out.Total = v.snapshot.NumServices(); q.problems {
			out.Total = v.problems.len()
		}
	}
	n := 0
	for e := range all {
		if out.Total > 0 && len(out.Services) == q.limit {
			return out
		}
		if !q.matches(e) {
			continue
		}
		if n++; n > q.offset && len(out.Services) < q.limit {
			out.Services = append(out.Services, v.summary(e))
		}
	}
	out.Total = n
	return out
}

// withProblems yields the services that have a problem.
func (v *view) withProblems() iter.Seq[*sink.ServiceEntry] {
	return func(yield func(*sink.ServiceEntry) bool) {
		v.problems.list.Scan(func(p problem) bool {
			e := v.snapshot.Service(p.Service)
			return e == nil || yield(e) // never nil: see diagnose
		})
	}
}

// matches reports whether every word is found in the service.
func (q *query) matches(e *sink.ServiceEntry) bool {
	return !slices.ContainsFunc(q.words, func(word string) bool { return !matches(e, word) })
}

// matches reports whether a word is part of a name, begins an address, or is a port.
func matches(e *sink.ServiceEntry, word string) bool {
	s := e.Service
	if strings.Contains(strings.ToLower(s.Name.String()), word) {
		return true
	}
	if strings.Trim(word, "0123456789") == "" {
		n, err := strconv.ParseUint(word, 10, 16)
		for i := range s.Ports {
			if err == nil && (s.Ports[i].Port == uint16(n) || s.Ports[i].NodePort == uint16(n)) {
				return true
			}
		}
	}
	if !strings.ContainsAny(word, ".:") {
		return false
	}
	for _, list := range [][]netip.Addr{s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs} {
		for _, a := range list {
			if strings.HasPrefix(a.String(), word) {
				return true
			}
		}
	}
	var buffer [64]byte
	for _, ep := range e.Endpoints {
		if strings.HasPrefix(string(ep.Target.Addr().AppendTo(buffer[:0])), word) {
			return true
		}
	}
	return false
}

// summary returns the summary of a service for a list.
func (v *view) summary(e *sink.ServiceEntry) summary {
	s, p := e.Service, v.problems.get(e.Service.Name)
	out := summary{Name: s.Name, Type: s.Type, ClusterIPs: s.ClusterIPs, Ports: []string{}, Status: p.Status,
		Problem: v.text(p)}
	if out.ClusterIPs == nil {
		out.ClusterIPs = []netip.Addr{}
	}
	for i, p := range s.Ports {
		if i < maxPortsListed {
			out.Ports = append(out.Ports, strconv.Itoa(int(p.Port))+"/"+p.Protocol.String())
		}
		used := countEndpoints(e, &p)
		out.Endpoints = max(out.Endpoints, used.IPv4, used.IPv6)
	}
	out.MorePorts = max(len(s.Ports)-maxPortsListed, 0)
	return out
}

// countEndpoints counts the endpoints of a port that get traffic, by family.
func countEndpoints(e *sink.ServiceEntry, p *model.ServicePort) (used model.PerFamily[int]) {
	for _, ep := range e.PortEndpoints(p.Name, p.Protocol) {
		if ep.Sets != 0 {
			*used.At(ep.Family())++
		}
	}
	return used
}

// verb says what happens to a packet without an endpoint.
func verb(v model.Verdict) string {
	if v == model.Drop {
		return "dropped"
	}
	return "rejected"
}
