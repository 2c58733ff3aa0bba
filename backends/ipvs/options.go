package ipvs

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	nft "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sysctl"
)

// Defaults of [Options].
const (
	// defaultScheduler is round robin.
	defaultScheduler = "rr"
	// tableName is the name of the nftables tables, one in family ip and one in ip6.
	tableName = "kube-proxy-lib-ipvs"
	// defaultMasqueradeMark is bit 14 of the packet mark (S31).
	defaultMasqueradeMark = 1 << 14
	// drainTimeout is how long the TCP connections of a removed endpoint may go on: as in upstream kube-proxy.
	drainTimeout = 15 * time.Minute
	// defaultDrainInterval is how often the backend checks for connections that have ended.
	defaultDrainInterval = 10 * time.Second
)

// Timeouts are how long IPVS keeps a connection without packets. 0 leaves the kernel's value unchanged.
type Timeouts = dataplane.Timeouts

// Options configure a [Backend]. The zero value is usable.
type Options struct {
	// Scheduler chooses the endpoint of a new connection: rr, wrr, lc, sh, mh, or any other that the kernel has. New
	// fails if the kernel does not have it. Default: rr, round robin. mh hashes the client's port, too.
	Scheduler string
	// ExcludeCIDRs are addresses of virtual servers of others. The backend neither changes nor deletes a foreign
	// virtual server there, and does not serve a service port at its address and port.
	ExcludeCIDRs []netip.Prefix
	// StrictARP makes the node answer ARP requests only for addresses of the receiving interface (arp_ignore and
	// arp_announce), so that the service addresses on the dummy interface stay unknown to the network. MetalLB needs
	// it.
	StrictARP bool
	// Timeouts are the timeouts of connections. 0 leaves the kernel's value unchanged.
	Timeouts Timeouts
	// MasqueradeMark is the bit of the packet mark that is set on packets to masquerade, and cleared again when they
	// are (S31). Default: bit 14.
	MasqueradeMark uint32
	// NodePortAddresses says which of the host's addresses serve node ports (S35), loopback addresses excepted.
	// Default, the zero Choice: all of them.
	NodePortAddresses nodeaddr.Choice
	// Host is where the host's addresses come from. Default: the network namespace of the thread that calls New.
	Host nodeaddr.Host
	// Families are the families to serve. Default, nil: IPv4, and IPv6 if the kernel supports it.
	Families []model.Family
	// Dataplane is the kernel's IPVS, and NFTables its packet filter. The backend does not close them if given.
	// Default: the kernel's, in the network namespace of the thread that calls New.
	Dataplane dataplane.Interface
	NFTables  nft.Interface
	// Sysctls is where kernel parameters are. Default: the machine's, in the network namespace of the calling thread.
	Sysctls sysctl.Root
	// OnProblem, if given, is called once for each part of a service that is not served, during Sync. Problems are
	// logged in any case.
	OnProblem func(ctx context.Context, p frontend.Problem)
	// Metrics, if given, is the registry for the metrics: they are registered until Close. See the package
	// documentation for the list. Give each of several backends a distinct label with prometheus.WrapRegistererWith.
	Metrics prometheus.Registerer

	// drainInterval is not defaultDrainInterval in tests.
	drainInterval time.Duration
}

// schedulerName is what can be part of a module's name.
var schedulerName = regexp.MustCompile(`^[a-z0-9_]{1,15}$`)

// validate returns an error that joins everything invalid.
func (o *Options) validate() error {
	var errs []error
	// To the kernel "none" is a virtual server that balances nothing.
	if o.Scheduler != "" && !schedulerName.MatchString(o.Scheduler) || o.Scheduler == "none" {
		errs = append(errs, fmt.Errorf("scheduler: %q is not the name of an IPVS scheduler", o.Scheduler))
	}
	for i, p := range o.ExcludeCIDRs {
		if !p.IsValid() {
			errs = append(errs, fmt.Errorf("excludeCIDRs[%d]: %v is not a prefix", i, p))
		}
	}
	errs = append(errs, o.NodePortAddresses.Validate())
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"timeouts.TCP", o.Timeouts.TCP}, {"timeouts.TCPFin", o.Timeouts.TCPFin}, {"timeouts.UDP", o.Timeouts.UDP},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is negative", d.field, d.value))
		} else if d.value > 0 && d.value < time.Second {
			errs = append(errs, fmt.Errorf("%s: %v is less than a second", d.field, d.value))
		}
	}
	if bits.OnesCount32(o.MasqueradeMark) > 1 {
		errs = append(errs, fmt.Errorf("masqueradeMark: %#x is not one bit", o.MasqueradeMark))
	}
	errs = append(errs, frontend.CheckFamilies(o.Families))
	return errors.Join(errs...)
}

// withDefaults returns the options with their defaults, except what New opens.
func (o Options) withDefaults() Options {
	if o.Scheduler == "" {
		o.Scheduler = defaultScheduler
	}
	if o.drainInterval == 0 {
		o.drainInterval = defaultDrainInterval
	}
	if o.MasqueradeMark == 0 {
		o.MasqueradeMark = defaultMasqueradeMark
	}
	return o
}

// excludes reports whether an address is in ExcludeCIDRs.
func (o *Options) excludes(a netip.Addr) bool {
	return slices.ContainsFunc(o.ExcludeCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
}
