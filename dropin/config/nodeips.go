package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// NodeIPs has the IP families that a node serves, and its primary IPs.
type NodeIPs struct {
	// Primary is the primary family.
	Primary model.Family
	// Families are the families to serve, the primary one first.
	Families []model.Family
	// IPs are the node's primary IPs. An unknown IP is the loopback address. With SingleStack, only the primary family has
	// an IP.
	IPs map[model.Family]netip.Addr
}

// DetectNodeIPs determines the IP families and the node's primary IPs (S49). Its input is a valid configuration (see
// Check), the node's IPs in the order of model.Node.IPs, and the IP families that both the kernel and the dataplane
// support.
//
// The primary family is that of the first nodeIPOverride, otherwise of the first node IP, otherwise IPv4. Both families
// are served if the machine has both, even if the node has no IP of one. ipFamilyPolicy SingleStack restricts that to
// the primary family; RequireDualStack requires both families and an IP of each.
//
// A machine without the primary family is an error. An unmet RequireDualStack is an error or, if configHardFail is
// false, a warning.
func DetectNodeIPs(c *v1alpha2.KubeProxyConfiguration, nodeIPs []netip.Addr,
	supported []model.Family) (NodeIPs, []Warning, error) {
	var overrides []netip.Addr
	for i, text := range c.NodeIPOverride {
		ip, err := lenient.Addr(text)
		if err != nil || ip.IsUnspecified() {
			return NodeIPs{}, nil, fmt.Errorf("%s: %q is not a valid node IP",
				elementOf("nodeIPOverride", i), text)
		}
		overrides = append(overrides, ip)
	}
	known := slices.Clone(overrides)
	for _, ip := range nodeIPs {
		if ip.IsValid() {
			known = append(known, ip.Unmap())
		}
	}
	n := NodeIPs{Primary: model.IPv4, IPs: map[model.Family]netip.Addr{}}
	if len(known) > 0 {
		n.Primary = model.FamilyOf(known[0])
	}
	if !slices.Contains(supported, n.Primary) {
		return NodeIPs{}, nil, fmt.Errorf("no support for the primary IP family, %v, on this machine; to change it, "+
			"set nodeIPOverride (bindAddress in v1alpha1)", n.Primary)
	}

	n.Families = []model.Family{n.Primary}
	secondary := otherFamily(n.Primary)
	detect := []model.Family{n.Primary}
	if c.IPFamilyPolicy != v1alpha2.IPFamilyPolicySingleStack {
		detect = append(detect, secondary)
		if slices.Contains(supported, secondary) {
			n.Families = append(n.Families, secondary)
		}
	}

	var w warnings
	var missing []error // requirements of RequireDualStack
	for _, f := range detect {
		ofFamily := func(ip netip.Addr) bool { return model.FamilyOf(ip) == f }
		if i := slices.IndexFunc(known, ofFamily); i >= 0 {
			n.IPs[f] = known[i]
			continue
		}
		n.IPs[f] = netip.IPv6Loopback()
		if f == model.IPv4 {
			n.IPs[f] = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		missing = append(missing, fmt.Errorf("the node has no %v address", f))
		if f == n.Primary {
			w.add("nodeIPOverride", "this node's IP is unknown: using %v; if that is wrong, set this "+
				"field (bindAddress in v1alpha1)", n.IPs[f])
		}
	}
	if !slices.Contains(supported, secondary) {
		missing = append(missing, fmt.Errorf("this machine has no %v", secondary))
		if i := slices.IndexFunc(overrides, func(ip netip.Addr) bool {
			return model.FamilyOf(ip) == secondary
		}); i >= 0 {
			w.add(elementOf("nodeIPOverride", i), "%v is ignored: this machine has no %v", overrides[i], secondary)
		}
	}
	if c.IPFamilyPolicy == v1alpha2.IPFamilyPolicyRequireDualStack && len(missing) > 0 {
		if c.ConfigHardFail == nil || *c.ConfigHardFail {
			return NodeIPs{}, nil, fmt.Errorf("ipFamilyPolicy is RequireDualStack: %w", errors.Join(missing...))
		}
		for _, err := range missing {
			w.add("ipFamilyPolicy", "RequireDualStack: %v; continuing without", err)
		}
	}
	return n, w, nil
}
