package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/lifecycle"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
)

// Defaults of [Options].
const (
	// defaultScheduler is round robin.
	defaultScheduler = "rr"
	// tableName is the name of the nftables tables, one in family ip and one in ip6.
	tableName = "kube-proxy-lib-ipvs"
	// defaultDrainInterval is how often the backend checks for connections that have ended.
	defaultDrainInterval = 10 * time.Second
)

// Timeouts are how long IPVS keeps a connection without packets, in whole seconds. 0 leaves the kernel's value
// unchanged.
type Timeouts struct {
	// TCP is for connections, TCPFin for those that one side has closed, UDP for flows.
	TCP, TCPFin, UDP time.Duration
}

// Options configure a [Backend]. The zero value is usable.
type Options struct {
	// Common are the options that all backends have.
	frontend.Common
	// Scheduler chooses the endpoint of a new connection: rr, wrr, lc, sh, mh, or any other that the kernel has. New
	// fails if the kernel does not have it. Default: rr, round robin. mh hashes the client's port, too.
	Scheduler string
	// ExcludeCIDRs are ranges in which other programs have virtual servers. The backend neither changes nor deletes
	// those, and serves no service port whose address and port one of them has.
	ExcludeCIDRs []netip.Prefix
	// StrictARP makes the node answer ARP requests only for addresses of the receiving interface (arp_ignore and
	// arp_announce), so that the service addresses on the dummy interface stay unknown to the network. MetalLB needs
	// it.
	StrictARP bool
	// Timeouts are the timeouts of connections. 0 leaves the kernel's value unchanged.
	Timeouts Timeouts
	// Marks are the bits of packet marks that the backend uses. Give at least 8 bits that no other program of the node
	// uses, without MasqueradeMark. Default: 0xffff00ff without MasqueradeMark.
	//
	// By the highest one the kernel delivers packets to services at addresses of other machines (S63). By the others the
	// backend selects a virtual server for pods of this node and for the node itself, where a service's external traffic
	// policy is Local (S27). There are 2^n-1 marks for n such bits, one for each service port with this policy; a port
	// that gets none is a [sink.PortError], and these clients of it are served like all others.
	Marks uint32
	// Link is the name of the dummy interface that has the service addresses. The backend creates it, or takes over a
	// dummy interface of that name. Default: kpl-ipvs0. Programs that look for kube-proxy's, kube-ipvs0, find it under
	// that name.
	Link string
	// OtherNodes knows the addresses of the cluster's other nodes, where only the services' ports are taken. Default:
	// none is known, and every address that is not an API server's is put on the interface.
	OtherNodes OtherNodes
	// APIServers are addresses by which the program reaches the API server, such as a virtual IP of all of them, or a
	// brain (package remote), in addition to the endpoints of default/kubernetes: of a service that lists one, only its
	// ports are taken there (S63). The port of the API server may be one of them, if a service is what provides the
	// virtual IP. Those that change, as of a name, OtherNodes may return as well.
	APIServers []netip.Addr
	// Dataplane is the kernel's IPVS with the interface Link, and NFTables its packet filter. The backend does not close
	// them if given. Default: the kernel's, in the network namespace of the thread that calls New.
	Dataplane Dataplane
	NFTables  NFTables

	// drainInterval replaces defaultDrainInterval in tests.
	drainInterval time.Duration
}

// schedulerName is what can be part of a module's name.
var schedulerName = regexp.MustCompile(`^[a-z0-9_]{1,15}$`)

// linkName is what the kernel takes for an interface, without characters that ip(8), sysctl(8) or a shell may take for
// something else.
var linkName = regexp.MustCompile(`^[A-Za-z0-9._][A-Za-z0-9._-]{0,14}$`)

// complete fills in defaults, except for what New opens, and returns an error that joins everything invalid.
func (o *Options) complete() error {
	o.Scheduler = cmp.Or(o.Scheduler, defaultScheduler)
	o.drainInterval = cmp.Or(o.drainInterval, defaultDrainInterval)
	o.Link = cmp.Or(o.Link, dataplane.DefaultLink)
	var errs []error
	// To the kernel "none" is a virtual server that balances nothing.
	if !schedulerName.MatchString(o.Scheduler) || o.Scheduler == "none" {
		errs = append(errs, fmt.Errorf("scheduler: %q is not the name of an IPVS scheduler", o.Scheduler))
	}
	for i, p := range o.ExcludeCIDRs {
		if !p.IsValid() {
			errs = append(errs, fmt.Errorf("excludeCIDRs[%d]: %v is not a prefix", i, p))
		}
	}
	// The last two are directories of sysctl(8): the kernel refuses them.
	if !linkName.MatchString(o.Link) || slices.Contains([]string{".", "..", "all", "default"}, o.Link) {
		errs = append(errs, fmt.Errorf("link: %q is not the name of an interface: 1 to 15 characters, letters, digits and "+
			"any of ._-", o.Link))
	}
	errs = append(errs, o.checkMarks(cmp.Or(o.MasqueradeMark, lifecycle.DefaultMasqueradeMark)))
	atLeastASecond := func(field string, d time.Duration) {
		if d < 0 {
			errs = append(errs, fmt.Errorf("timeouts.%s: %v is negative", field, d))
		} else if d > 0 && d < time.Second {
			errs = append(errs, fmt.Errorf("timeouts.%s: %v is less than a second", field, d))
		}
	}
	atLeastASecond("TCP", o.Timeouts.TCP)
	atLeastASecond("TCPFin", o.Timeouts.TCPFin)
	atLeastASecond("UDP", o.Timeouts.UDP)
	return errors.Join(errs...)
}

// excludes reports whether an address is in ExcludeCIDRs.
func (o *Options) excludes(a netip.Addr) bool {
	return slices.ContainsFunc(o.ExcludeCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
}
