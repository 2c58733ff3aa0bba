package page

import (
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

// status is the status of a service.
type status string

const (
	statusOK      status = "ok"
	statusEmpty   status = "empty"   // traffic of some kind is rejected or dropped, because it has no endpoint
	statusFailing status = "failing" // the backend could not apply it
)

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

// services returns the services that match a query.
func (v *view) services(q query) *serviceList {
	out := &serviceList{Revision: v.snapshot.Revision(), Offset: q.offset, Services: []summary{}}
	if len(q.words) == 0 && !q.problems {
		out.Total = v.snapshot.NumServices()
	}
	n := 0
	for e := range v.snapshot.Services() {
		if !q.matches(e) || q.problems && v.summary(e).Status == statusOK {
			continue
		}
		if n++; n > q.offset && len(out.Services) < q.limit {
			out.Services = append(out.Services, v.summary(e))
		}
		if out.Total > 0 && len(out.Services) == q.limit {
			return out
		}
	}
	out.Total = n
	return out
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
	s := e.Service
	out := summary{Name: s.Name, Type: s.Type, ClusterIPs: s.ClusterIPs, Ports: []string{}, Status: statusOK}
	if out.ClusterIPs == nil {
		out.ClusterIPs = []netip.Addr{}
	}
	for i, p := range s.Ports {
		if i < maxPortsListed {
			out.Ports = append(out.Ports, strconv.Itoa(int(p.Port))+"/"+p.Protocol.String())
		}
		counts := countEndpoints(e, &p)
		for _, f := range model.Families() {
			n := counts.At(f)
			out.Endpoints = max(out.Endpoints, n.used)
			if out.Problem == "" {
				out.Problem = n.problem(p.Routes(f))
			}
		}
	}
	out.MorePorts = max(len(s.Ports)-maxPortsListed, 0)
	if out.Problem != "" {
		out.Status = statusEmpty
	}
	if failing := v.failing[s.Name]; len(failing) > 0 {
		out.Status, out.Problem = statusFailing, shorten(strings.Join(failing, "; "))
	}
	return out
}

// counts has the numbers of endpoints of a port and family, by set.
type counts struct{ used, cluster, local int }

// countEndpoints counts those of a port, for both families.
func countEndpoints(e *sink.ServiceEntry, p *model.ServicePort) (n model.PerFamily[counts]) {
	for _, ep := range e.PortEndpoints(p.Name, p.Protocol) {
		c := n.At(ep.Family())
		if ep.Sets != 0 {
			c.used++
		}
		if ep.Sets.Has(model.ClusterSet) {
			c.cluster++
		}
		if ep.Sets.Has(model.LocalSet) {
			c.local++
		}
	}
	return n
}

// problem says which traffic has no endpoint; "" if all has one.
func (c *counts) problem(r model.Routes) string {
	for _, way := range []struct {
		traffic string
		route   model.Route
	}{
		{"traffic to the cluster IP", r.ClusterIP},
		{"traffic from outside", r.External},
		{"external traffic from pods of this node", r.ExternalFromPod},
		{"external traffic from the node", r.ExternalFromNode},
	} {
		if way.route.Endpoints != 0 && c.of(way.route.Endpoints) == 0 {
			return way.traffic + " is " + verb(way.route.Empty)
		}
	}
	return ""
}

// of returns the number of endpoints in a set.
func (c *counts) of(set model.EndpointSets) int {
	if set == model.LocalSet {
		return c.local
	}
	return c.cluster
}

// verb says what happens to a packet without an endpoint.
func verb(v model.Verdict) string {
	if v == model.Drop {
		return "dropped"
	}
	return "rejected"
}
