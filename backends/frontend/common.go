package frontend

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
)

// Common are the options that all backends of this module have.
type Common struct {
	// Families are the families to serve. Default, nil: IPv4, and IPv6 if the node supports it.
	Families []model.Family
	// NodePortAddresses says which of the host's addresses serve node ports (S35). Default, the zero Choice: all of
	// them. Backends that filter packets exclude loopback addresses. HNS serves node ports on all addresses, and its
	// backend refuses any other choice.
	NodePortAddresses nodeaddr.Choice
	// Host is the source of the host's addresses. Default: this host, in the network namespace of the thread that calls
	// New, or, for a dataplane in memory, that dataplane's host.
	Host nodeaddr.Host
	// Sysctls is where kernel parameters are, for the backends that read or set some: iptables and IPVS. Default: the
	// machine's, in the network namespace of the thread that calls New.
	Sysctls sysctl.Root
	// MasqueradeMark is the bit of the packet mark that is set on packets to masquerade, and cleared again when they
	// are (S31). Default: bit 14. HNS and the proxy in user space mark no packets.
	MasqueradeMark uint32
	// Limits bound what a service and a namespace may cost.
	Limits Limits
	// OnProblem, if given, is called once for each part of a service port that is not served, during Sync, for example
	// to create an Event. Problems are logged in any case. If more than nine with the same reason begin at once in a
	// family of a service, eight are reported, and a ninth says how many more there are.
	OnProblem func(ctx context.Context, p Problem)
	// Metrics, if given, is the registry for the backend's metrics, which its package documentation lists: they are
	// registered until Close. Give each of several backends a distinct label with prometheus.WrapRegistererWith.
	Metrics prometheus.Registerer
}
