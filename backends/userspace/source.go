package userspace

import (
	"context"
	"net"
	"net/netip"
)

// dial connects to the endpoint of a decision, from the client's address if that is to be kept.
func (b *Backend) dial(network string, d decision) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, b.options.tuning.DialTimeout)
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
	err = b.options.Open(func() (err error) {
		conn, err = b.options.tuning.Dial(ctx, &dialer, network, d.endpoint)
		return err
	})
	return conn, err
}
