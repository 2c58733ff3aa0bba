package dropin

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// destroyUpstreamSets destroys the unused ipsets of Kubernetes' own kube-proxy in mode ipvs.
func destroyUpstreamSets() error {
	sets, err := netlink.IpsetListAll()
	if err != nil {
		return nil //nolint:nilerr // a kernel without ipsets has none
	}
	var errs []error
	for _, s := range sets {
		if !upstreamSet(s.SetName) {
			continue
		}
		if err := netlink.IpsetDestroy(s.SetName); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("destroy ipset %s: %w", s.SetName, err))
		}
	}
	return errors.Join(errs...)
}

// maxSetName is the length at which kube-proxy cuts the names of ipsets for IPv6: IPSET_MAXNAMELEN, without the
// terminating zero.
const maxSetName = 31

// upstreamSet reports whether an ipset belongs to Kubernetes' own kube-proxy of any version since 1.8. Names for IPv6
// contain a 6.
func upstreamSet(name string) bool {
	return slices.ContainsFunc([]string{
		"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-LOCAL",
		"LOAD-BALANCER-FW", "LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR", "NODE-PORT-TCP",
		"NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP", "NODE-PORT-SCTP-HASH",
		"NODE-PORT-LOCAL-SCTP-HASH", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
		"LOAD-BALANCER-MASQ",                     // until about 1.10
		"NODE-PORT-SCTP", "NODE-PORT-LOCAL-SCTP", // until 1.14
	}, func(s string) bool {
		ipv6 := "KUBE-6-" + s
		return name == "KUBE-"+s || name == ipv6[:min(len(ipv6), maxSetName)]
	})
}
