package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// dial connects to the endpoint of a decision, from the client's address if that is to be kept. It logs why
// it cannot: as an error, now and then, if the reason is no endpoint's.
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
	log := klog.FromContext(b.ctx)
	if (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && b.undialled.due(time.Now()) {
		log.Error(err, "Cannot connect to endpoints")
	} else if err != nil {
		log.V(2).Info("Cannot connect to an endpoint", "network", network, "endpoint", d.endpoint, "reason", err)
	}
	return conn, err
}
