package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
)

// Defaults of [Options].
const (
	DefaultMaxConnections = 16384
	DefaultMaxFlows       = 4096
	// DefaultUDPTimeout is conntrack's for flows with traffic in both directions.
	DefaultUDPTimeout = 2 * time.Minute
	// DefaultDialTimeout is how long an endpoint may take to accept a connection.
	DefaultDialTimeout = 5 * time.Second
)

// Options configure a [Backend]. The zero value serves the addresses that the host has.
type Options struct {
	// Addresses is how traffic to service addresses gets to this process. Default: Given, nothing is done for it.
	Addresses Addresses
	// Families are the families to serve. Nil means both.
	Families []model.Family
	// NodePortAddresses tells which of the host's addresses serve node ports (S35). Default, the zero Choice: all.
	NodePortAddresses nodeaddr.Choice
	// LocalhostNodePorts serves node ports on IPv4 loopback addresses, too, where NodePortAddresses allows it (S36).
	LocalhostNodePorts bool
	// Host is where the host's addresses come from. Default: this host.
	Host nodeaddr.Host
	// KeepSource shows endpoints the client's address wherever the route does not masquerade (S27, S28), though another
	// port. It takes Linux, CAP_NET_ADMIN, and a way back for the answers of the endpoints: see the package's
	// documentation. Without it endpoints see an address of the node.
	KeepSource bool
	// Dial connects to an endpoint with a dialer, which knows the address to connect from; network is "tcp" or "udp".
	// Default: d.DialContext is called.
	Dial func(ctx context.Context, d *net.Dialer, network string, endpoint netip.AddrPort) (net.Conn, error)
	// Listen calls a function that opens a socket, and returns its error. A program that serves another network
	// namespace than its own calls it on a thread in that namespace, and sets Dial as well. Default: it is just called.
	Listen func(open func() error) error
	// DialTimeout bounds each attempt to connect to an endpoint. Default: DefaultDialTimeout.
	DialTimeout time.Duration
	// MaxConnections is how many TCP connections are served at a time. Each takes two file descriptors. Default:
	// DefaultMaxConnections.
	MaxConnections int
	// MaxFlows is how many UDP flows there are at a time, each with a file descriptor; for one more, one that was
	// silent for long ends. Default: DefaultMaxFlows.
	MaxFlows int
	// UDPTimeout ends a flow that was silent in both directions. Default: DefaultUDPTimeout.
	UDPTimeout time.Duration
	// Sockets are listening sockets of an earlier process, as [Backend.Sockets] returned them there. The backend owns
	// them; what the first Sync does not need is closed by it.
	Sockets []*os.File
	// OnProblem is told what is not served and why, once, from within Sync. It is logged in any case.
	OnProblem func(ctx context.Context, p frontend.Problem)
}

// Validate returns everything that is wrong.
func (o *Options) Validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"dialTimeout", o.DialTimeout}, {"udpTimeout", o.UDPTimeout}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is negative", d.field, d.value))
		}
	}
	for _, n := range []struct {
		field string
		value int
	}{{"maxConnections", o.MaxConnections}, {"maxFlows", o.MaxFlows}} {
		if n.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %d is negative", n.field, n.value))
		}
	}
	for _, p := range o.NodePortAddresses.CIDRs {
		if !p.IsValid() {
			errs = append(errs, fmt.Errorf("nodePortAddresses: %v is not a prefix", p))
		}
	}
	return errors.Join(errs...)
}

// withDefaults returns the options with nothing left open.
func (o Options) withDefaults() Options {
	if o.Addresses == nil {
		o.Addresses = Given{}
	}
	if o.Families == nil {
		both := model.Families()
		o.Families = both[:]
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
	if o.DialTimeout == 0 {
		o.DialTimeout = DefaultDialTimeout
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = DefaultMaxConnections
	}
	if o.MaxFlows == 0 {
		o.MaxFlows = DefaultMaxFlows
	}
	if o.UDPTimeout == 0 {
		o.UDPTimeout = DefaultUDPTimeout
	}
	return o
}
