package remote

import (
	"context"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// combine brings effective up to date where the shared layer or an own part changed.
func (v *view) combine(ctx context.Context, old *sink.Snapshot, touched map[model.ServiceName]bool) {
	for c := range v.shared.snapshot.ChangesSince(old) {
		if touched[c.Name] || c.New == nil || c.ServiceChanged() {
			touched[c.Name] = true
			continue
		}
		part, service := v.own[c.Name], v.service(c.Name)
		for before, now := range c.Endpoints() {
			key := before
			if key == nil {
				key = now
			}
			v.setEndpoint(service, key.Key(), part.Endpoint(v.class, key.Key(), now))
		}
	}
	for name := range touched {
		v.combineService(name)
	}
	before := v.effective.sync(ctx)
	for c := range v.effective.snapshot.ChangesSince(before) {
		v.note(c)
	}
	if !v.node.Equal(v.nodeGiven) {
		v.pending.Node, v.pending.IPv4, v.pending.IPv6 = true, true, true
	}
}

// service returns a service as it is for this node, or nil.
func (v *view) service(name model.ServiceName) *model.Service {
	e := v.shared.snapshot.Service(name)
	if e == nil {
		return nil
	}
	return narrow(v.own[name].Service(e.Service, v.node), v.families)
}

func (v *view) setEndpoint(service *model.Service, key model.EndpointKey, e *model.Endpoint) {
	if e == nil || service == nil || service.Port(key.Port.Port, key.Port.Protocol) == nil ||
		!slices.Contains(v.families, e.Family()) {
		v.effective.full.DeleteEndpoint(key)
		return
	}
	v.effective.full.SetEndpoint(e)
}

// combineService works a service out anew.
func (v *view) combineService(name model.ServiceName) {
	if v.own[name] == nil && v.effective.snapshot.Service(name) == nil { // most of a first state
		if service := v.service(name); service != nil {
			v.effective.full.SetService(service)
			for _, e := range v.shared.snapshot.Service(name).Endpoints {
				v.setEndpoint(service, e.Key(), e)
			}
		}
		return
	}
	keys := map[model.EndpointKey]*model.Endpoint{}
	if e := v.effective.snapshot.Service(name); e != nil {
		for _, ep := range e.Endpoints {
			keys[ep.Key()] = nil
		}
	}
	service := v.service(name)
	if service == nil {
		for key := range keys {
			v.effective.full.DeleteEndpoint(key)
		}
		v.effective.full.DeleteService(name)
		return
	}
	part := v.own[name]
	for _, ep := range v.shared.snapshot.Service(name).Endpoints {
		keys[ep.Key()] = ep
	}
	if part != nil {
		for _, ep := range part.Endpoints {
			keys[ep.Key()] = ep
		}
	}
	v.effective.full.SetService(service)
	for key, shared := range keys {
		v.setEndpoint(service, key, part.Endpoint(v.class, key, shared))
	}
}

// narrow returns a service without the families that are not wanted, or nil if nothing is left of it.
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
	v4, v6 := slices.Contains(families, model.IPv4), slices.Contains(families, model.IPv6)
	for i := range out.Ports {
		if !v4 {
			out.Ports[i].RoutesIPv4 = model.Routes{}
		}
		if !v6 {
			out.Ports[i].RoutesIPv6 = model.Routes{}
		}
	}
	if h := s.HealthCheck; h != nil {
		check := *h
		if !v4 {
			check.LocalEndpointsIPv4 = 0
		}
		if !v6 {
			check.LocalEndpointsIPv6 = 0
		}
		out.HealthCheck = &check
	}
	return &out
}
