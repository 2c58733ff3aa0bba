package preflight

import (
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// connection is the destination of tracked connections.
type connection struct {
	protocol model.Protocol
	to       netip.AddrPort
}
