package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/internal/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sysctl"
)

// defaultMasqueradeMark is bit 14 of the packet mark (S31).
const defaultMasqueradeMark = 1 << 14

// defaultDriftInterval is how often the backend checks for rules that another program has changed.
const defaultDriftInterval = time.Second

// Options configure a [Backend]. The zero value is usable.
type Options struct {
	// MasqueradeMark is the bit of the packet mark that is set on packets to masquerade, and cleared again when they
	// are (S31). Default: bit 14.
	MasqueradeMark uint32
	// NodePortAddresses says which of the host's addresses serve node ports (S35), loopback addresses excepted.
	// Default, the zero Choice: all of them, as in kube-proxy's mode iptables.
	NodePortAddresses nodeaddr.Choice
	// LocalhostNodePorts serves node ports on 127.0.0.0/8 too (S36), as far as NodePortAddresses has them. The first
	// Sync then sets the kernel parameter net/ipv4/conf/all/route_localnet, unless it is set already, and packets from
	// elsewhere to loopback addresses are dropped. If it cannot be set, for example in an unprivileged container, that
	// is logged once, node ports are served on all other addresses, and each resync tries again. IPv6 has no such
	// parameter.
	LocalhostNodePorts bool
	// Families are the families to serve. Default, nil: IPv4, and IPv6 if the machine supports it.
	Families []model.Family
	// Sysctls is where kernel parameters are: nf_conntrack_tcp_be_liberal, which New reads (S34), and route_localnet.
	// Default: the machine's, in the network namespace of the calling thread.
	Sysctls sysctl.Root
	// Dataplanes are where rules are written, one for each family to serve; Families is ignored then. The backend does
	// not close Dataplanes that it is given. Default: the programs, in the network namespace of the thread that calls
	// New, of the variant that the node already uses: iptables-nft or iptables-legacy. If that changes between two
	// runs, the chains of the earlier one stay until [CleanUp] is called.
	Dataplanes []Dataplane
	// OnProblem, if given, is called once for each part of a service port that is not served, for example to create an
	// Event. See [frontend.Options].
	OnProblem func(ctx context.Context, p frontend.Problem)
	// Metrics, if given, is the registry for the metrics: they are registered until Close. Names and labels are
	// kube-proxy's; see the package documentation for the list. Give each of several backends a distinct label with
	// prometheus.WrapRegistererWith.
	Metrics prometheus.Registerer

	// Tests choose the variant of the programs, and driftInterval instead of defaultDriftInterval; negative: never.
	variant       dataplane.Variant
	driftInterval time.Duration
}

// validate returns an error that joins everything invalid.
func (o *Options) validate() error {
	errs := []error{o.NodePortAddresses.Validate(), frontend.CheckFamilies(o.Families)}
	if bits.OnesCount32(o.MasqueradeMark) > 1 {
		errs = append(errs, fmt.Errorf("masqueradeMark: %#x is not one bit", o.MasqueradeMark))
	}
	var given []model.Family
	for _, d := range o.Dataplanes {
		given = append(given, d.Features().Family)
	}
	if err := frontend.CheckFamilies(given); err != nil {
		errs = append(errs, fmt.Errorf("dataplanes: %w", err))
	}
	return errors.Join(errs...)
}

// withDefaults returns the options with their defaults, except for the dataplanes and what they are made from.
func (o Options) withDefaults() Options {
	o.MasqueradeMark = cmp.Or(o.MasqueradeMark, defaultMasqueradeMark)
	o.driftInterval = cmp.Or(o.driftInterval, defaultDriftInterval)
	return o
}
