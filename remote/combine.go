package remote

import (
	"context"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// combine updates the effective layer where the shared layer or one of the node's parts changed.
func (v *view) combine(ctx context.Context, old *sink.Snapshot, touched map[model.ServiceName]bool) {
	before := v.effective.snapshot
	if before.NumServices() == 0 {
		v.begin(touched)
		old = v.shared.snapshot
	}
	for c := range v.shared.snapshot.ChangesSince(old) {
		if touched[c.Name] || c.New == nil || c.ServiceChanged() {
			touched[c.Name] = true
			continue
		}
		part, f := v.own[c.Name], v.filter(v.service(c.Name))
		for before, now := range c.Endpoints() {
			key := before
			if key == nil {
				key = now
			}
			v.setEndpoint(&f, key.Key(), part.Endpoint(v.class, key.Key(), now))
		}
	}
	for name := range touched {
		v.combineService(name)
	}
	v.effective.sync(ctx)
	for c := range v.effective.snapshot.ChangesSince(before) {
		v.note(c)
	}
	if !v.node.Equal(v.nodeGiven) {
		v.pending.Node, v.pending.Families = true, model.BothFamilies
	}
}

// begin starts the effective layer with the shared one, which is most of the state. It adds the services that differ on
// this node to touched.
func (v *view) begin(touched map[model.ServiceName]bool) {
	v.effective = newLayer(v.shared.snapshot)
	for e := range v.shared.snapshot.Services() {
		if name := e.Service.Name; v.own[name] != nil || v.serviceOf(e) != e.Service || !v.takesAll(e) {
			touched[name] = true
		}
	}
}

// takesAll reports whether this node gets all endpoints of a service.
func (v *view) takesAll(e *sink.ServiceEntry) bool {
	f := v.filter(e.Service)
	var last *model.Endpoint // the endpoints of a port are adjacent
	for _, ep := range e.Endpoints {
		if last == nil || ep.Port != last.Port || ep.Family() != last.Family() {
			if !f.takes(ep) {
				return false
			}
		}
		last = ep
	}
	return true
}

// endpointFilter selects the endpoints of a service that this node gets: those of an enabled family whose port the
// service has.
type endpointFilter struct {
	families []model.Family
	service  *model.Service          // nil: there is none
	ports    map[model.PortName]bool // of a service with many ports
}

func (v *view) filter(service *model.Service) endpointFilter {
	f := endpointFilter{families: v.families, service: service}
	if service != nil && len(service.Ports) > 8 { // a linear search for each endpoint would be quadratic
		f.ports = make(map[model.PortName]bool, len(service.Ports))
		for _, p := range service.Ports {
			f.ports[service.PortName(p)] = true
		}
	}
	return f
}

func (f *endpointFilter) takes(e *model.Endpoint) bool {
	if f.service == nil || !slices.Contains(f.families, e.Family()) {
		return false
	}
	if f.ports != nil {
		return f.ports[e.Port]
	}
	return f.service.Port(e.Port.Port, e.Port.Protocol) != nil
}

// service returns a service as it is for this node, or nil.
func (v *view) service(name model.ServiceName) *model.Service {
	e := v.shared.snapshot.Service(name)
	if e == nil {
		return nil
	}
	return v.serviceOf(e)
}

// serviceOf returns a service of the class as it is for this node, or nil.
func (v *view) serviceOf(e *sink.ServiceEntry) *model.Service {
	return narrow(v.own[e.Service.Name].Service(e.Service, v.node), v.families)
}

func (v *view) setEndpoint(f *endpointFilter, key model.EndpointKey, e *model.Endpoint) {
	if e == nil || !f.takes(e) {
		v.effective.full.DeleteEndpoint(key)
		return
	}
	v.effective.full.SetEndpoint(e)
}

// combineService recomputes a service.
func (v *view) combineService(name model.ServiceName) {
	var before []*model.Endpoint
	if e := v.effective.snapshot.Service(name); e != nil {
		before = e.Endpoints
	}
	service := v.service(name)
	if service == nil {
		for _, ep := range before {
			v.effective.full.DeleteEndpoint(ep.Key())
		}
		v.effective.full.DeleteService(name)
		return
	}
	v.effective.full.SetService(service)
	part, f := v.own[name], v.filter(service)
	done := map[model.EndpointKey]bool{}
	set := func(key model.EndpointKey, shared *model.Endpoint) {
		if !done[key] {
			done[key] = true
			v.setEndpoint(&f, key, part.Endpoint(v.class, key, shared))
		}
	}
	for _, ep := range v.shared.snapshot.Service(name).Endpoints {
		set(ep.Key(), ep)
	}
	if part != nil {
		for _, ep := range part.Endpoints {
			set(ep.Key(), ep)
		}
	}
	for _, ep := range before {
		set(ep.Key(), nil)
	}
}

// narrow returns a service without the families that are not enabled: the service itself if it has no others, nil if it
// has no enabled family.
func narrow(s *model.Service, families []model.Family) *model.Service {
	if len(families) == 2 || len(s.ClusterIPs) == 0 {
		return s
	}
	other := func(a netip.Addr) bool { return !slices.Contains(families, model.FamilyOf(a)) }
	out := *s
	out.ClusterIPs = slices.DeleteFunc(slices.Clone(s.ClusterIPs), other)
	if len(out.ClusterIPs) == 0 {
		return nil
	}
	out.ExternalIPs = slices.DeleteFunc(slices.Clone(s.ExternalIPs), other)
	out.LoadBalancerIPs = slices.DeleteFunc(slices.Clone(s.LoadBalancerIPs), other)
	out.LoadBalancerSourceRanges = slices.DeleteFunc(slices.Clone(s.LoadBalancerSourceRanges),
		func(p netip.Prefix) bool { return other(p.Addr()) })
	out.Ports = slices.Clone(s.Ports)
	if s.HealthCheck != nil {
		check := *s.HealthCheck
		out.HealthCheck = &check
	}
	for _, f := range model.Families() {
		if slices.Contains(families, f) {
			continue
		}
		for i := range out.Ports {
			*out.Ports[i].Routes.At(f) = model.Routes{}
		}
		if out.HealthCheck != nil {
			*out.HealthCheck.LocalEndpoints.At(f) = 0
		}
	}
	if out.Equal(s) {
		return s
	}
	return &out
}
