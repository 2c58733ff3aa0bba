package backendtest

import (
	"context"
	"net"
	"net/netip"
)

// DialIn returns a function that connects like d.DialContext, but within do, which runs a function on a thread in a
// network namespace.
func DialIn(do func(func() error) error) func(ctx context.Context, d *net.Dialer, network string,
	to netip.AddrPort) (net.Conn, error) {
	return func(ctx context.Context, d *net.Dialer, network string, to netip.AddrPort) (conn net.Conn, err error) {
		err = do(func() (err error) {
			conn, err = d.DialContext(ctx, network, to.String())
			return err
		})
		return conn, err
	}
}
