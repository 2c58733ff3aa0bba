package userspace

import (
	"context"
	"errors"
	"slices"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/internal/refusals"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Loopback is a sink that serves node ports on 127.0.0.1 and ::1, and nothing else (S36a). It runs next to a backend in
// the kernel that leaves loopback addresses alone:
//
//	loopback.Beside(nftBackend)
//
// See the package documentation.
type Loopback struct {
	// FilterSink has the methods of the sink.
	*sink.FilterSink
	backend *Backend
	shown   *nodePortsOnly
}

var _ sink.Describer = (*Loopback)(nil)

// NewLoopback returns a Loopback, which serves nothing before the first Sync. Of o it does not use Addresses,
// LocalhostNodePorts and OnProblem: the backend next to it reports the same problems. NodePortAddresses has to choose
// 127.0.0.1 or ::1, and the host has to have the address; otherwise it is not served. Like New it follows the host's
// addresses until Close, and has lower limits where the process may not open many files.
func NewLoopback(ctx context.Context, o Options) (*Loopback, error) {
	o.Addresses, o.LocalhostNodePorts, o.OnProblem = nil, false, nil
	b, err := newBackend(ctx, o, true)
	if err != nil {
		return nil, err
	}
	shown := &nodePortsOnly{Forward: sink.NewForward(b), services: map[model.ServiceName]*model.Service{},
		excesses: refusals.Ports{Counts: exceedsLimits}}
	return &Loopback{FilterSink: sink.Filter(shown, sink.Keep{Service: hasNodePorts}), backend: b, shown: shown}, nil
}

// Beside returns a sink that feeds a backend in the kernel and, after it, the Loopback, which does not serve the node
// ports that exceed [frontend.Limits] there. On its own the Loopback would serve them, because it counts less: its
// services have no other addresses.
func (l *Loopback) Beside(kernel sink.Sink) *sink.TeeSink {
	return sink.Tee(inKernel{sink.NewForward(kernel), l}, l)
}

// inKernel is the backend that a Loopback runs next to.
type inKernel struct {
	*sink.Forward
	loopback *Loopback
}

// Sync implements [sink.Sink].
func (k inKernel) Sync(ctx context.Context) error {
	err := k.Forward.Sync(ctx)
	k.loopback.shown.follow(err)
	return err
}

// exceedsLimits reports whether an error says that a service port is not served, in particular its node port, because
// it exceeds [frontend.Limits].
func exceedsLimits(e *sink.PortError) bool {
	var problem frontend.Problem
	return !e.ServesExternal && errors.As(e.Err, &problem)
}

// Sync implements [sink.Sink]. A node port that cannot be served, because another program of the host has the address
// for example, is a [sink.PortError]; a Sync after ResyncFailed tries again. Runners do that.
func (l *Loopback) Sync(ctx context.Context) error {
	// The backend next to this one logs the same services.
	return l.FilterSink.Sync(klog.NewContext(ctx, klog.FromContext(ctx).WithName("loopback")))
}

// DescribeService implements [sink.Describer], see [Backend.DescribeService].
func (l *Loopback) DescribeService(ctx context.Context, name model.ServiceName) (string, error) {
	return l.backend.DescribeService(ctx, name)
}

// Close ends all connections and flows, and every goroutine. Call no other method after it.
func (l *Loopback) Close() error { return l.backend.Close() }

// hasNodePorts reports whether a service has a node port that can be served.
func hasNodePorts(s *model.Service) bool { return slices.ContainsFunc(s.Ports, hasNodePort) }

func hasNodePort(p model.ServicePort) bool { return p.NodePort != 0 && p.Protocol != model.SCTP }

// nodePortsOnly passes services on as they are served on loopback addresses.
type nodePortsOnly struct {
	*sink.Forward
	services map[model.ServiceName]*model.Service // as they were set
	excesses refusals.Ports                       // of the backend next to it
}

// follow records which node ports exceed limits, from what the Sync of the backend next to it has returned.
func (n *nodePortsOnly) follow(err error) {
	for _, name := range n.excesses.Note(err) {
		if s := n.services[name]; s != nil {
			n.show(s)
		}
	}
}

// SetService implements [sink.Sink].
func (n *nodePortsOnly) SetService(s *model.Service) {
	n.services[s.Name] = s
	n.show(s)
}

func (n *nodePortsOnly) show(s *model.Service) {
	n.Forward.SetService(onLoopback(s, n.excesses.Of(s.Name)))
}

// DeleteService implements [sink.Sink].
func (n *nodePortsOnly) DeleteService(name model.ServiceName) {
	delete(n.services, name)
	n.Forward.DeleteService(name)
}

// onLoopback returns a service with its node ports alone, without those that exceed limits. They have one route, for
// all clients: to the set that serves clients outside of the node, so that with traffic policy Local only endpoints of
// this node are used. Without any, connections are refused.
func onLoopback(s *model.Service, excesses refusals.Set) *model.Service {
	c := *s
	c.ClusterIPs, c.ExternalIPs, c.LoadBalancerIPs, c.LoadBalancerSourceRanges = nil, nil, nil, nil
	c.HealthCheck = nil // counts that change with each endpoint
	c.Ports = slices.Clone(s.Ports)
	for i := range c.Ports {
		p := &c.Ports[i]
		if !hasNodePort(*p) {
			p.NodePort = 0
		}
		for _, f := range model.Families() {
			routes := p.Routes.At(f)
			if *routes = toLoopback(*routes); excesses.Has(p, f) {
				*routes = model.Routes{}
			}
		}
	}
	return &c
}

func toLoopback(r model.Routes) model.Routes {
	if r.External.Endpoints == 0 {
		return model.Routes{}
	}
	route := model.Route{Endpoints: r.External.Endpoints, Masquerade: model.MasqueradeAlways, Empty: model.Reject}
	return model.Routes{External: route, ExternalFromPod: route, ExternalFromNode: route}
}
