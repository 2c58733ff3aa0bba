package preflight

import (
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// connection is where tracked connections go.
type connection struct {
	protocol model.Protocol
	to       netip.AddrPort
}
