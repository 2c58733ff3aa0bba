package iptables

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
)

// defaultDriftInterval is how often the backend checks for rules that another program has changed.
const defaultDriftInterval = time.Second

// StickyLimits returns how many endpoints with session affinity one service and the services of one namespace may have
// in each family, unless [frontend.Limits] say otherwise. The kernel finds the list of clients of each by its name, and
// iptables-legacy looks for all of them in every restore.
func StickyLimits() frontend.StickyLimits {
	return frontend.StickyLimits{Service: 2048, Namespace: 3072}
}

// Options configure a [Backend]. The zero value is usable. Of the kernel parameters, New reads
// nf_conntrack_tcp_be_liberal (S34), and LocalhostNodePorts sets route_localnet.
type Options struct {
	// Common are the options that all backends have.
	frontend.Common
	// LocalhostNodePorts serves node ports on 127.0.0.0/8 too (S36), as far as NodePortAddresses has them. The first
	// Sync then sets the kernel parameter net/ipv4/conf/all/route_localnet, unless it is set already, and packets from
	// elsewhere to loopback addresses are dropped. If it cannot be set, for example in an unprivileged container, that
	// is logged once, node ports are served on all other addresses, and each resync tries again. IPv6 has no such
	// parameter.
	LocalhostNodePorts bool
	// Dataplanes are where rules are written, one for each family to serve; Families is ignored then. The backend does
	// not close Dataplanes that it is given. Default: the programs, in the network namespace of the thread that calls
	// New, of the variant that the node already uses: iptables-nft or iptables-legacy. If that changes between two
	// runs, the chains of the earlier one stay until [CleanUp] is called.
	Dataplanes []Dataplane

	// Tests choose the variant of the programs, driftInterval instead of defaultDriftInterval (negative: never), and
	// maxNames instead of dataplane.MaxNames.
	variant       dataplane.Variant
	driftInterval time.Duration
	maxNames      int
}
