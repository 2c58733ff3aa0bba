package dataplane

import (
	"cmp"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Options say which iptables New uses. The zero value is that of IPv4, of the variant that the node uses.
type Options struct {
	// Family is IPv4 if it is 0.
	Family model.Family
	// Variant is NFT or Legacy. Default: the one that the node already uses. That is the one in which the kubelet has
	// left a hint (the chains KUBE-IPTABLES-HINT or KUBE-KUBELET-CANARY in table mangle), else the one with more rules,
	// else that of the plain "iptables".
	Variant Variant
}

// validate also sets the defaults.
func (o *Options) validate() error {
	o.Family = cmp.Or(o.Family, model.IPv4)
	switch {
	case o.Family != model.IPv4 && o.Family != model.IPv6:
		return fmt.Errorf("option Family %v: neither IPv4 nor IPv6", o.Family)
	case o.Variant != "" && o.Variant != NFT && o.Variant != Legacy:
		return fmt.Errorf("option Variant %q: neither %q nor %q nor empty", o.Variant, NFT, Legacy)
	}
	return nil
}
