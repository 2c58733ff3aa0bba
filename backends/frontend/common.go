package frontend

import (
	"cmp"
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/internal/nodeports"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Common are the options that all backends of this module have.
type Common struct {
	// Families are the families to serve. Default, nil: IPv4, and IPv6 if the node supports it.
	Families []model.Family
	// NodePortAddresses says which of the host's addresses serve node ports (S35); its type is nodeaddr.Choice. Default,
	// the zero Choice: all of them. The backends that filter packets except loopback addresses. HNS serves node ports on
	// all addresses, and its backend refuses any other choice.
	NodePortAddresses nodeports.Choice
	// Limits bound what one service may cost.
	Limits Limits
	// OnProblem, if given, is called once for each part of a service port that is not served, during Sync, for example
	// to create an Event. Problems are logged in any case.
	OnProblem func(ctx context.Context, p Problem)
	// Metrics, if given, is the registry for the backend's metrics, which its package documentation lists: they are
	// registered until Close. Give each of several backends a distinct label with prometheus.WrapRegistererWith.
	Metrics prometheus.Registerer
}

// Limits bound what one service may cost the dataplane, in each family, so that its author cannot exhaust a node that
// serves everybody. They are far beyond what services need. What exceeds them is not served, and reported as a
// [Problem] of its service port; other services, and what is within the limits, are not affected. It is served as soon
// as the service keeps to them. All backends count alike.
type Limits struct {
	// Frontends is how many frontends a service may have. Further ones are not served: see [TooManyFrontends]. Default,
	// 0: 131,072.
	Frontends int
	// SourceRanges is how many source ranges a service may have. The load-balancer IPs of a service with more are not
	// served, rather than to everybody or to some of its clients: see [TooManySourceRanges]. Default, 0: 16,384.
	SourceRanges int
}

// complete returns the limits with their defaults.
func (l Limits) complete() Limits {
	return Limits{Frontends: cmp.Or(l.Frontends, 1<<17), SourceRanges: cmp.Or(l.SourceRanges, 1<<14)}
}

// Validate returns an error if a limit is negative.
func (l Limits) Validate() error {
	if l.Frontends < 0 || l.SourceRanges < 0 {
		return errors.New("limits: must not be negative")
	}
	return nil
}
