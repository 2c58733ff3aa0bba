package rules

import (
	"net/netip"

	"go4.org/netipx"

	dp "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// VIPFields are the fields of a [Key] with an address.
func VIPFields() []dp.Field {
	return []dp.Field{dp.DestinationAddr, dp.Protocol, dp.DestinationPort}
}

// ServiceIPs returns the map that says where packets to a service's address go.
func ServiceIPs() *dp.Set { return &dp.Set{Name: "service-ips", Key: VIPFields(), Verdicts: true} }

// VIPSources returns the set that says which sources may use a VIP (S26). [SourceElements] makes its elements.
func VIPSources() *dp.Set {
	return &dp.Set{Name: "vip-sources", Key: append(VIPFields(), dp.SourceAddr), Interval: true}
}

// Key returns a key of an address, protocol and port; for a node port, which has no address, of the other two.
func Key(a netip.Addr, p model.Protocol, port uint16) string {
	var b [24]byte
	return string(dp.AppendPort(dp.AppendProtocol(dp.AppendAddr(b[:0], a), p), port))
}

// AddrKey returns a key of an address.
func AddrKey(a netip.Addr) string {
	var b [16]byte
	return string(dp.AppendAddr(b[:0], a))
}

// SourceElements returns the elements by which only some sources may use the VIP with a key. They do not overlap.
func SourceElements(key string, sources []netip.Prefix) []dp.Element {
	var b netipx.IPSetBuilder
	for _, p := range sources {
		b.AddPrefix(p)
	}
	set, _ := b.IPSet() // an error is about a prefix that is invalid
	ranges := set.Ranges()
	list := make([]dp.Element, len(ranges))
	for i, r := range ranges {
		k := append(dp.AppendAddr([]byte(key), r.From()), key...)
		list[i].Key = string(dp.AppendAddr(k, r.To()))
	}
	return list
}
