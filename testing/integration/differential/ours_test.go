package differential

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// ours is watch and localstate, driven as Run drives them, with a sink that checks the calls that it gets.
type ours struct {
	source   *toldSource // nil if localstate sees all objects
	state    *localstate.State
	recorder *sink.Recorder
	before   answer
}

func newOurs(ctx context.Context, s setup) (*ours, error) {
	opts := localstate.Options{NodeName: nodeName, MasqueradeAll: s.MasqueradeAll}
	if len(s.Families) > 0 {
		for _, f := range s.Families {
			opts.Families = append(opts.Families, familyOf(f))
		}
	}
	switch s.Detector {
	case detectClusterCIDR4:
		opts.DetectLocal.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	case detectBridge:
		opts.DetectLocal.Bridge = "cbr0"
	case detectNodeCIDR:
		opts.DetectLocal.NodeCIDR = true
	}
	state, err := localstate.New(ctx, opts, localstate.ClusterOptions{NoExternalIPs: !externalIPsAllowed()})
	if err != nil {
		return nil, err
	}
	o := &ours{state: state, recorder: &sink.Recorder{}}
	if s.Unfiltered {
		return o, nil
	}
	o.source, err = startToldSource(ctx, state)
	return o, err
}

// close ends what newOurs has started.
func (o *ours) close() {
	if o.source != nil {
		o.source.close()
	}
}

func familyOf(f corev1.IPFamily) model.Family {
	if f == corev1.IPv6Protocol {
		return model.IPv6
	}
	return model.IPv4
}

func (o *ours) take(e event) error {
	if o.source != nil {
		return o.source.take(e)
	}
	_, err := o.state.Apply(e.object, e.deleted)
	return err
}

// sync flushes and returns the answer.
func (o *ours) sync(ctx context.Context) (a answer) {
	defer func() {
		if r := recover(); r != nil {
			a.failure = fmt.Sprint("panic: ", r)
		}
	}()
	changes := o.state.Flush(o.recorder)
	if err := o.recorder.Sync(ctx); err != nil {
		a.failure = err.Error()
		return a
	}
	if v := o.recorder.Violations(); len(v) > 0 {
		a.failure = "the contract of sink.Sink is not kept: " + strings.Join(v, "; ")
		return a
	}
	if v := o.recorder.BrokenInvariants(); len(v) > 0 {
		a.failure = "the model's invariants do not hold: " + strings.Join(v, "; ")
		return a
	}
	wave := o.recorder.TakeWaves()[0]
	services, endpoints := 0, 0
	for _, c := range wave.Calls {
		switch c.Op {
		case sink.OpSetService, sink.OpDeleteService:
			services++
		case sink.OpSetEndpoint, sink.OpDeleteEndpoint:
			endpoints++
		}
	}
	if changes.Services != services || changes.Endpoints != endpoints {
		a.failure = fmt.Sprintf("Flush counts %d services and %d endpoints, and hands over %d and %d", changes.Services,
			changes.Endpoints, services, endpoints)
		return a
	}
	a = o.answer()
	a.triggers = map[model.Family]map[time.Time]bool{}
	for _, f := range model.Families() {
		a.triggers[f] = map[time.Time]bool{}
		for _, t := range *changes.Triggers.At(f) {
			a.triggers[f][t] = true
		}
	}
	a.changed = sortedNames(a.changedSince(o.before))
	o.before = a
	return a
}

// answer reads the state that the sink has received so far.
func (o *ours) answer() answer {
	a := answer{ports: map[portKey]portAnswer{}, health: map[familyKey]healthAnswer{}, noLocal: map[string]int{}}
	for name, svc := range o.recorder.Services() {
		for _, f := range model.Families() {
			if !svc.ClusterIP(f).IsValid() {
				if says := saysOf(svc, f); says != "" {
					a.failure = fmt.Sprintf("%v has no cluster IP of family %v, but %s", name, f, says)
				}
				continue
			}
			for _, p := range svc.Ports {
				a.ports[portKey{svc.PortName(p), f}] = servicePortAnswer(svc, p, f)
			}
			if h := svc.HealthCheck; h != nil {
				a.health[familyKey{name, f}] = healthAnswer{h.NodePort, *h.LocalEndpoints.At(f)}
			}
		}
	}
	for _, e := range o.recorder.Endpoints() {
		k := portKey{e.Port, e.Family()}
		p := a.ports[k]
		p.add(e)
		a.ports[k] = p
	}
	for k, p := range a.ports {
		a.ports[k] = p.finished()
	}
	if n := o.recorder.Node(); n != nil {
		a.node = nodeAnswer{Zone: n.Zone, NotEligible: n.NotEligible, IP4: n.IP(model.IPv4), IP6: n.IP(model.IPv6)}
	}
	n := o.state.NoLocalEndpoints()
	for name, count := range map[string]int{
		"IPv4 internal": n.Internal.IPv4, "IPv4 external": n.External.IPv4, "IPv6 internal": n.Internal.IPv6,
		"IPv6 external": n.External.IPv6,
	} {
		if count != 0 {
			a.noLocal[name] = count
		}
	}
	return a
}

// servicePortAnswer is the answer about one port of a service.
func servicePortAnswer(svc *model.Service, p model.ServicePort, f model.Family) portAnswer {
	routes := *p.Routes.At(f)
	return portAnswer{
		ClusterIP: svc.ClusterIP(f), Port: p.Port, NodePort: p.NodePort,
		ExternalIPs: ofFamily(svc.ExternalIPs, f), LoadBalancerIPs: ofFamily(svc.LoadBalancerIPs, f),
		SourceRanges:         rangeSet(svc.SourceRanges(f)),
		AffinityTimeout:      svc.SessionAffinityTimeout,
		InternalPolicyLocal:  svc.InternalTrafficPolicy == model.TrafficPolicyLocal,
		ExternalPolicyLocal:  svc.ExternalTrafficPolicy == model.TrafficPolicyLocal,
		ExternallyAccessible: !routes.External.IsZero(),
		UsesClusterEndpoints: routes.Sets().Has(model.ClusterSet),
		UsesLocalEndpoints:   routes.Sets().Has(model.LocalSet),
		ClusterIPRoute:       routes.ClusterIP, External: routes.External, FromPod: routes.ExternalFromPod,
		FromNode: routes.ExternalFromNode,
	}
}

// saysOf returns the answer about a family of a service, without its endpoints.
func saysOf(svc *model.Service, f model.Family) string {
	switch {
	case len(ofFamily(svc.ExternalIPs, f)) > 0:
		return "external IPs"
	case len(ofFamily(svc.LoadBalancerIPs, f)) > 0:
		return "load-balancer IPs"
	case len(svc.SourceRanges(f)) > 0:
		return "source ranges"
	case svc.HealthCheck != nil && *svc.HealthCheck.LocalEndpoints.At(f) > 0:
		return "local endpoints"
	}
	for _, p := range svc.Ports {
		if *p.Routes.At(f) != (model.Routes{}) {
			return "routes"
		}
	}
	return ""
}

func ofFamily(list []netip.Addr, f model.Family) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		if model.FamilyOf(a) == f {
			out = append(out, a)
		}
	}
	return sortedSet(out, netip.Addr.Compare)
}

// add adds an endpoint to the sets that it belongs to.
func (p *portAnswer) add(e *model.Endpoint) {
	value := endpoint{Target: e.Target, Local: e.Local, Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating}
	if e.Sets.Has(model.ClusterSet) {
		p.ClusterEndpoints = append(p.ClusterEndpoints, value)
	}
	if e.Sets.Has(model.LocalSet) {
		p.LocalEndpoints = append(p.LocalEndpoints, value)
	}
	if e.Port.Protocol == model.UDP && e.Serving {
		p.ServingUDP = append(p.ServingUDP, value)
	}
}

// finished sorts the sets, and reads from the routes whether there are endpoints anywhere (S23): if so, a local route
// that is empty here drops, otherwise it rejects.
func (p portAnswer) finished() portAnswer {
	p.ClusterEndpoints, p.LocalEndpoints, p.ServingUDP = sortEndpoints(p.ClusterEndpoints),
		sortEndpoints(p.LocalEndpoints), sortEndpoints(p.ServingUDP)
	p.HasAnyEndpoints = len(p.ClusterEndpoints) > 0
	for _, r := range []model.Route{p.ClusterIPRoute, p.External} {
		if r.Endpoints == model.LocalSet {
			p.HasAnyEndpoints = r.Empty == model.Drop
		}
	}
	return p
}
