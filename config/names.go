package config

import (
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"

	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
)

// v1alpha1Name returns the v1alpha1 name of a field of v1alpha2 that Validate can report, so that messages about a file
// use the names in the file. The name of a section stands for all fields in it.
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
		return "clusterCIDR" // it is one text there, and the value says which part
	}
	return field
}
