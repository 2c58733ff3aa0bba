package rules

import (
	"net/netip"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
)

// An endpoint that reaches itself through a service must see another source, or its reply would bypass the translation
// (S29). The rule is in the chains that masquerade; hairpin.go of package frontend decides which endpoints are in the
// set.

// Hairpin returns the set of the packets that are from an endpoint to itself.
func Hairpin() *dp.Set {
	return &dp.Set{Name: "hairpin", Key: []dp.Field{dp.SourceAddr, dp.DestinationAddr}}
}

// HairpinKey returns the key of the packets from an address to itself.
func HairpinKey(a netip.Addr) string {
	var b [32]byte
	return string(dp.AppendAddr(dp.AppendAddr(b[:0], a), a))
}

func masqueradeHairpin(hairpin *dp.Set) dp.Rule {
	return Commented("an endpoint that reaches itself", dp.InSet{Set: hairpin}, dp.Masquerade{})
}
