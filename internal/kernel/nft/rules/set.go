package rules

import (
	"net/netip"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// VIPFields are the fields of a [Key] with an address.
func VIPFields() []dp.Field {
	return []dp.Field{dp.DestinationAddr, dp.Protocol, dp.DestinationPort}
}

// ServiceIPs returns the map that says where packets to a service's address go.
func ServiceIPs() *dp.Set { return &dp.Set{Name: "service-ips", Key: VIPFields(), Verdicts: true} }

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
