package hns

import (
	"context"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Unsupported is the reason of a [frontend.Problem] about a feature of a service that HNS does not support.
const Unsupported frontend.Reason = "UnsupportedByHNS"

// capability is something that services may ask for and that HNS cannot do, or not in every version.
type capability string

const (
	sctp            capability = "SCTP ports are not served"
	noAffinity      capability = "session affinity: this version of Windows chooses an endpoint for each connection"
	affinityTimeout capability = "session affinity is a hash of the client's address: it has no timeout, and a " +
		"client may get another endpoint when the endpoints change"
	sourceRanges capability = "load-balancer source ranges: the load-balancer IPs are open to all sources"
	sourceRoutes capability = "external traffic policy Local: pods of the node, and the node itself, reach the node's " +
		"endpoints alone, as everybody does"
	noDSR capability = "external traffic policy Local: this version of Windows cannot keep the source of connections"
	ports capability = "endpoints with different target ports: only those with the most frequent one are used"
	host  capability = "endpoints in the network of this node itself are not used: HNS has no endpoint for them"
)

// unsupported reports, once for each service, features that HNS does not support.
type unsupported struct {
	onProblem func(context.Context, frontend.Problem)
	told      map[model.ServiceName]map[capability]bool
	ports     map[model.ServiceName]int // wanted at present, in all families
}

func newUnsupported(onProblem func(context.Context, frontend.Problem)) *unsupported {
	return &unsupported{onProblem: onProblem, told: map[model.ServiceName]map[capability]bool{},
		ports: map[model.ServiceName]int{}}
}

// tell logs that HNS cannot do something for a service port, once for each service.
func (u *unsupported) tell(ctx context.Context, f model.Family, p model.PortName, c capability) {
	if u.told[p.Service][c] {
		return
	}
	if u.told[p.Service] == nil {
		u.told[p.Service] = map[capability]bool{}
	}
	u.told[p.Service][c] = true
	klog.FromContext(ctx).Info("HNS does not support everything that a service requests", "service", p.Service,
		"what", string(c))
	if u.onProblem != nil {
		u.onProblem(ctx, frontend.Problem{Family: f, Port: p, Reason: Unsupported, Message: string(c)})
	}
}

// count adds to the number of ports that a service has. When the last one is removed, what was logged about the service
// is forgotten.
func (u *unsupported) count(s model.ServiceName, by int) {
	if u.ports[s] += by; u.ports[s] <= 0 {
		delete(u.ports, s)
		delete(u.told, s)
	}
}
