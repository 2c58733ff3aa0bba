package config

import (
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

// v1alpha1Name returns the v1alpha1 name of a v1alpha2 field that Validate can report, so that messages use the names
// in the file. A section's name covers all its fields.
func v1alpha1Name(field string, mode v1alpha1.ProxyMode) string {
	section := "iptables."
	switch v1alpha2.ProxyMode(mode) {
	case v1alpha2.ProxyModeIPVS:
		section = "ipvs."
	case v1alpha2.ProxyModeNFTables:
		section = "nftables."
	}
	for _, n := range []struct{ current, old string }{
		{"linux.", ""},
		{"syncPeriod", section + "syncPeriod"},
		{"minSyncPeriod", section + "minSyncPeriod"},
		{"ipvs.masqueradeBit", "iptables.masqueradeBit"},
		{"nodeIPOverride[0]", "bindAddress"},
	} {
		if rest, ok := strings.CutPrefix(field, n.current); ok {
			return n.old + rest
		}
	}
	if strings.HasPrefix(field, "detectLocal.clusterCIDRs") {
		return "clusterCIDR" // a single string in v1alpha1; the value shows which part
	}
	return field
}
