package userspace

import (
	"context"
	"net"
	"net/netip"
)

// dial connects to the endpoint of a decision, from the client's address if that is to be kept.
func (b *Backend) dial(network string, d decision) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(b.ctx, b.options.DialTimeout)
	defer cancel()
	var dialer net.Dialer
	if b.options.KeepSource && d.source.IsValid() {
		dialer.Control = transparent
		from := netip.AddrPortFrom(d.source, 0)
		if network == "udp" {
			dialer.LocalAddr = net.UDPAddrFromAddrPort(from)
		} else {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(from)
		}
	}
	return b.options.Dial(ctx, &dialer, network, d.endpoint)
}
