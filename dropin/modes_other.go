//go:build !windows

package dropin

import "sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"

// modes returns the modes of this system, the default first, as in kube-proxy.
func modes() []mode {
	return []mode{
		{name: v1alpha2.ProxyModeIPTables, usable: usableIPTables, start: startIPTables, cleanUp: cleanUpIPTables,
			cleanUpUpstream: cleanUpUpstreamIPTables, findUpstream: findUpstreamIPTables},
		{name: v1alpha2.ProxyModeNFTables, start: startNFTables, cleanUp: cleanUpNFTables,
			cleanUpUpstream: cleanUpUpstreamNFTables, findUpstream: findUpstreamNFTables},
		// After iptables, because rules of upstream's mode ipvs in iptables refer to its ipsets.
		{name: v1alpha2.ProxyModeIPVS, start: startIPVS, cleanUp: cleanUpIPVS, cleanUpUpstream: cleanUpUpstreamIPVS},
	}
}
