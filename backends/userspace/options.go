package userspace

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"os"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
)

// Options configure a [Backend]. The zero value serves service addresses that the host already has.
type Options struct {
	// Common are the options that all backends have. Families nil means both, and only [NewLoopback] has metrics.
	frontend.Common
	// Addresses makes traffic to service addresses reach this process. Default: Existing, which does nothing.
	Addresses Addresses
	// LocalhostNodePorts also serves node ports on IPv4 loopback addresses, if NodePortAddresses allows it (S36).
	LocalhostNodePorts bool
	// Open calls a function that opens a socket, to listen on an address or to connect to an endpoint, and returns its
	// error. To serve a network namespace other than the process's own, call the function on a thread in that
	// namespace. Default: it just calls it.
	Open func(open func() error) error
	// Sockets are the listening sockets of an earlier process, as its [Backend.Sockets] returned them. The backend owns
	// them, and its first Sync closes those that it does not need.
	Sockets []*os.File

	tuning tuning
}

// withDefaults returns the options with every field set.
func (o Options) withDefaults() Options {
	if o.Addresses == nil {
		o.Addresses = Existing{}
	}
	if o.Open == nil {
		o.Open = func(open func() error) error { return open() }
	}
	o.tuning = o.tuning.withDefaults()
	return o
}

// tuning are limits and timeouts that only tests change.
type tuning struct {
	// MaxConnections limits the TCP connections at a time. Each takes two file descriptors, on Linux six, because
	// splice(2) needs a pipe in each direction. At the limit a new connection replaces one of the client with most, see
	// pool, or is reset.
	MaxConnections int
	// MaxFlows limits the UDP flows at a time, in the same way.
	MaxFlows int
	// MaxListeners limits the listening sockets: see listenerQuota. Each takes about 10 KB. A frontend that gets none is
	// a [sink.PortError].
	MaxListeners int
	// DialTimeout bounds each attempt to connect to an endpoint.
	DialTimeout time.Duration
	// TCPEstablishedTimeout ends a connection on which neither side has sent anything for so long. It takes up to twice
	// the time, and three times if a side does not read either.
	TCPEstablishedTimeout time.Duration
	// TCPCloseWaitTimeout is the timeout once one side has ended its half of the connection, if it is the
	// shorter one.
	TCPCloseWaitTimeout time.Duration
	// UDPTimeout ends a flow that has been idle in both directions for so long.
	UDPTimeout time.Duration
	// Dial connects to an endpoint; network is "tcp" or "udp".
	Dial func(ctx context.Context, network string, endpoint netip.AddrPort) (net.Conn, error)
}

// withDefaults returns the values with those that are not set.
func (t tuning) withDefaults() tuning {
	t.MaxConnections = cmp.Or(t.MaxConnections, 16384)
	t.MaxFlows = cmp.Or(t.MaxFlows, 4096)
	t.MaxListeners = cmp.Or(t.MaxListeners, 32768)
	t.DialTimeout = cmp.Or(t.DialTimeout, 5*time.Second)
	t.TCPEstablishedTimeout = cmp.Or(t.TCPEstablishedTimeout, 24*time.Hour) // this and the next: as kube-proxy sets them
	t.TCPCloseWaitTimeout = cmp.Or(t.TCPCloseWaitTimeout, time.Hour)
	t.UDPTimeout = cmp.Or(t.UDPTimeout, 2*time.Minute) // conntrack's, for flows with traffic in both directions
	if t.Dial == nil {
		t.Dial = func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, to.String())
		}
	}
	return t
}

// within returns the values with lower limits where these do not fit into a number of file descriptors, a quarter for
// each. Limits that are set stay.
func (t tuning) within(files int) tuning {
	// On Linux a connection takes six.
	fits := tuning{MaxConnections: files / 4 / 6, MaxFlows: files / 4, MaxListeners: files / 4}
	most := tuning{}.withDefaults()
	t.MaxConnections = cmp.Or(t.MaxConnections, max(min(most.MaxConnections, fits.MaxConnections), 1))
	t.MaxFlows = cmp.Or(t.MaxFlows, max(min(most.MaxFlows, fits.MaxFlows), 1))
	t.MaxListeners = cmp.Or(t.MaxListeners, max(min(most.MaxListeners, fits.MaxListeners), 1))
	return t
}
