package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
)

// Defaults of [Options].
const (
	defaultMaxConnections = 16384
	defaultMaxFlows       = 4096
	defaultMaxListeners   = 32768
	// These two are what kube-proxy has connection tracking use.
	defaultTCPEstablishedTimeout = 24 * time.Hour
	defaultTCPCloseWaitTimeout   = time.Hour
	// defaultUDPTimeout is conntrack's for flows with traffic in both directions.
	defaultUDPTimeout = 2 * time.Minute
	// defaultDialTimeout is how long an endpoint may take to accept a connection.
	defaultDialTimeout = 5 * time.Second
)

// Options configure a [Backend]. The zero value serves service addresses that the host already has.
type Options struct {
	// Addresses makes traffic to service addresses reach this process. Default: Given, which does nothing.
	Addresses Addresses
	// Families are the families to serve. Nil means both.
	Families []model.Family
	// NodePortAddresses selects the host's addresses that serve node ports (S35). Default, the zero Choice: all.
	NodePortAddresses nodeaddr.Choice
	// LocalhostNodePorts also serves node ports on IPv4 loopback addresses, if NodePortAddresses allows it (S36).
	LocalhostNodePorts bool
	// Host is the source of the host's addresses. Default: this host.
	Host nodeaddr.Host
	// KeepSource shows endpoints the client's address, but not its port, wherever the route does not masquerade (S27,
	// S28). It needs Linux, CAP_NET_ADMIN, and a route back for the endpoints' answers: see the package documentation.
	// Without it endpoints see an address of the node.
	KeepSource bool
	// Dial connects to an endpoint with a dialer that knows the source address; network is "tcp" or "udp". Default: it
	// calls d.DialContext.
	Dial func(ctx context.Context, d *net.Dialer, network string, endpoint netip.AddrPort) (net.Conn, error)
	// Listen calls a function that opens a socket, and returns its error. To serve a network namespace other than the
	// process's own, call the function on a thread in that namespace, and set Dial as well. Default: it just calls it.
	Listen func(open func() error) error
	// DialTimeout bounds each attempt to connect to an endpoint. Default 5 s.
	DialTimeout time.Duration
	// MaxConnections limits the TCP connections at a time. Each takes two file descriptors, on Linux six, because
	// splice(2) needs a pipe in each direction. A service port may have no more connections than are left, and its
	// namespace no more than three times as many: alone, a port can have half of them, and a namespace three quarters.
	// New connections beyond that wait in the listener's queue. Default 16384.
	MaxConnections int
	// MaxFlows limits the UDP flows at a time. Each takes a file descriptor. At the limit, a new flow replaces one of
	// the namespace and port with most flows that has been idle for long. Default 4096.
	MaxFlows int
	// MaxListeners limits the listening sockets, which are shared out like MaxConnections. Each takes a file descriptor
	// and about 10 KB. A frontend that gets none is a [sink.PortError]. Default 32768.
	MaxListeners int
	// TCPEstablishedTimeout ends a connection on which neither side has sent anything for so long. It takes up to twice
	// the time, and three times if a side does not read either. Default 24 hours.
	TCPEstablishedTimeout time.Duration
	// TCPCloseWaitTimeout is the timeout once one side has ended its half of the connection, if it is the shorter one.
	// Default 1 hour.
	TCPCloseWaitTimeout time.Duration
	// UDPTimeout ends a flow that has been idle in both directions for so long. Default 2 minutes.
	UDPTimeout time.Duration
	// Sockets are the listening sockets of an earlier process, as its [Backend.Sockets] returned them. The backend owns
	// them, and its first Sync closes those that it does not need.
	Sockets []*os.File
	// Metrics, if given, is the registry for the metrics of [NewLoopback]: they are registered until Close. New has none.
	Metrics prometheus.Registerer
	// OnProblem is called from within Sync, once for everything that is not served, with the reason. Each is also
	// logged.
	OnProblem func(ctx context.Context, p frontend.Problem)
}

// Validate returns an error that joins everything invalid.
func (o *Options) Validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"dialTimeout", o.DialTimeout}, {"tcpEstablishedTimeout", o.TCPEstablishedTimeout},
		{"tcpCloseWaitTimeout", o.TCPCloseWaitTimeout}, {"udpTimeout", o.UDPTimeout}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is negative", d.field, d.value))
		}
	}
	for _, n := range []struct {
		field string
		value int
	}{{"maxConnections", o.MaxConnections}, {"maxFlows", o.MaxFlows}, {"maxListeners", o.MaxListeners}} {
		if n.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %d is negative", n.field, n.value))
		}
	}
	return errors.Join(append(errs, o.NodePortAddresses.Validate())...)
}

// withDefaults returns the options with every field set.
func (o Options) withDefaults() Options {
	if o.Addresses == nil {
		o.Addresses = Given{}
	}
	if o.Families == nil {
		o.Families = model.Families()
	}
	if o.Host == nil {
		o.Host = &nodeaddr.System{}
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, d *net.Dialer, network string, to netip.AddrPort) (net.Conn, error) {
			return d.DialContext(ctx, network, to.String())
		}
	}
	if o.Listen == nil {
		o.Listen = func(open func() error) error { return open() }
	}
	o.DialTimeout = cmp.Or(o.DialTimeout, defaultDialTimeout)
	o.MaxConnections = cmp.Or(o.MaxConnections, defaultMaxConnections)
	o.MaxFlows = cmp.Or(o.MaxFlows, defaultMaxFlows)
	o.MaxListeners = cmp.Or(o.MaxListeners, defaultMaxListeners)
	o.TCPEstablishedTimeout = cmp.Or(o.TCPEstablishedTimeout, defaultTCPEstablishedTimeout)
	o.TCPCloseWaitTimeout = cmp.Or(o.TCPCloseWaitTimeout, defaultTCPCloseWaitTimeout)
	o.UDPTimeout = cmp.Or(o.UDPTimeout, defaultUDPTimeout)
	return o
}
