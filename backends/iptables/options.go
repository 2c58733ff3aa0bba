package iptables

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/internal/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/sysctl"
)

// defaultDriftInterval is how often the backend checks for rules that another program has changed.
const defaultDriftInterval = time.Second

// Options configure a [Backend]. The zero value is usable.
type Options struct {
	// Common are the options that all backends have.
	frontend.Common
	// MasqueradeMark is the bit of the packet mark that is set on packets to masquerade, and cleared again when they
	// are (S31). Default: bit 14.
	MasqueradeMark uint32
	// LocalhostNodePorts serves node ports on 127.0.0.0/8 too (S36), as far as NodePortAddresses has them. The first
	// Sync then sets the kernel parameter net/ipv4/conf/all/route_localnet, unless it is set already, and packets from
	// elsewhere to loopback addresses are dropped. If it cannot be set, for example in an unprivileged container, that
	// is logged once, node ports are served on all other addresses, and each resync tries again. IPv6 has no such
	// parameter.
	LocalhostNodePorts bool
	// Sysctls is where kernel parameters are: nf_conntrack_tcp_be_liberal, which New reads (S34), and route_localnet.
	// Default: the machine's, in the network namespace of the calling thread.
	Sysctls sysctl.Root
	// Dataplanes are where rules are written, one for each family to serve; Families is ignored then. The backend does
	// not close Dataplanes that it is given. Default: the programs, in the network namespace of the thread that calls
	// New, of the variant that the node already uses: iptables-nft or iptables-legacy. If that changes between two
	// runs, the chains of the earlier one stay until [CleanUp] is called.
	Dataplanes []Dataplane

	// Tests choose the variant of the programs, and driftInterval instead of defaultDriftInterval; negative: never.
	variant       dataplane.Variant
	driftInterval time.Duration
}
