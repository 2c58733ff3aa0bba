package userspace

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Loopback is a sink that serves node ports on 127.0.0.1 and ::1, and nothing else (S36a). It stands beside a backend in
// the kernel that leaves loopback addresses alone:
//
//	sink.Tee(nftBackend, loopback)
//
// See the package documentation.
type Loopback struct {
	// FilterSink has the methods of the sink.
	*sink.FilterSink
	backend *Backend
}

var _ sink.Describer = (*Loopback)(nil)

// NewLoopback returns a Loopback, which serves nothing before the first Sync. Of o it does not use Addresses,
// LocalhostNodePorts and KeepSource, nor OnProblem: the backend beside it reports the same problems. NodePortAddresses
// has to choose 127.0.0.1 or ::1, and the host has to have the address; otherwise it is not served. Like New it follows
// the host's addresses until Close, and has lower limits where the process may not open many files.
func NewLoopback(ctx context.Context, o Options) (*Loopback, error) {
	o.Addresses, o.LocalhostNodePorts, o.KeepSource, o.OnProblem = nil, false, false, nil
	b, err := newBackend(ctx, o, true)
	if err != nil {
		return nil, err
	}
	return &Loopback{
		FilterSink: sink.Filter(nodePortsOnly{sink.NewForward(b)}, sink.Keep{Service: hasNodePorts}),
		backend:    b,
	}, nil
}

// Sync implements [sink.Sink]. A node port that cannot be served, because another program of the host has the address
// for example, is a [sink.PortError]; a Sync after ResyncFailed tries again. Runners do that.
func (l *Loopback) Sync(ctx context.Context) error {
	// The backend beside this one logs the same services.
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
type nodePortsOnly struct{ *sink.Forward }

// SetService implements [sink.Sink].
func (n nodePortsOnly) SetService(s *model.Service) { n.Forward.SetService(onLoopback(s)) }

// onLoopback returns a service with its node ports alone. They have one route, whoever connects: to the set that serves
// clients outside of the node, so that with traffic policy Local only endpoints of this node are used. Without any,
// connections are refused.
func onLoopback(s *model.Service) *model.Service {
	c := *s
	c.ClusterIPs, c.ExternalIPs, c.LoadBalancerIPs, c.LoadBalancerSourceRanges = nil, nil, nil, nil
	c.HealthCheck = nil // counts that change with each endpoint
	c.Ports = slices.Clone(s.Ports)
	for i := range c.Ports {
		p := &c.Ports[i]
		if !hasNodePort(*p) {
			p.NodePort = 0
		}
		p.RoutesIPv4, p.RoutesIPv6 = toLoopback(p.RoutesIPv4), toLoopback(p.RoutesIPv6)
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
