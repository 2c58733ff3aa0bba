package userspace

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// errItself is why an endpoint is not used at whose address this backend listens: a connection would come back to it,
// without end.
var errItself = errors.New("this backend itself listens there")

// dial connects to the endpoint of a decision, and logs why it cannot, only now and then if that is not the endpoint's
// fault. The caller calls ownSockets.disconnect in the end.
func (b *Backend) dial(ctx context.Context, timeout time.Duration, protocol model.Protocol, d decision) (net.Conn,
	error) {
	conn, err := b.tryDial(ctx, timeout, protocol, d)
	log := klog.FromContext(b.ctx)
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, errItself) && b.ownAddresses.due(time.Now()):
		log.Info("Not using an endpoint that is an address of a service", "endpoint", d.endpoint, "reason", err)
	case (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && b.dialErrors.due(time.Now()):
		log.Error(err, "Cannot connect to endpoints")
	default:
		log.V(2).Info("Cannot connect to an endpoint", "protocol", protocol, "endpoint", d.endpoint, "reason", err)
	}
	return nil, err
}

func (b *Backend) tryDial(ctx context.Context, timeout time.Duration, protocol model.Protocol, d decision) (
	conn net.Conn, err error) {
	if b.own.listensAt(protocol, d.endpoint) {
		return nil, errItself
	}
	err = b.options.Open(func() (err error) { // which may have to wait for others: that is no fault of the endpoint
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		conn, err = b.options.tuning.Dial(ctx, strings.ToLower(protocol.String()), d.endpoint)
		return err
	})
	if err != nil {
		return nil, err
	}
	b.own.connect(protocol, conn)
	if b.own.listensAt(protocol, d.endpoint) { // it has begun to just now
		b.own.disconnect(protocol, conn)
		reset(conn)
		return nil, errItself
	}
	return conn, nil
}

// isFaultOfEndpoint reports whether a connection to another endpoint may succeed.
func isFaultOfEndpoint(err error) bool {
	return !errors.Is(err, context.Canceled) && !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE)
}
