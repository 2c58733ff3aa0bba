package userspace_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// laptop is a backend that serves cluster IPs on ports of 127.0.0.1, and the driver that tells it of services.
type laptop struct {
	*fakemodel.Driver
	b *userspace.Backend
}

func newLaptop(t testing.TB, o userspace.Options) *laptop {
	t.Helper()
	return newLaptopIn(context.Background(), t, o)
}

// newLoggingLaptop returns a laptop, and the lines that its backend logs.
func newLoggingLaptop(t testing.TB, tuning userspace.Tuning) (*laptop, <-chan string) {
	t.Helper()
	lines := make(chan string, 10)
	logger := funcr.New(func(_, line string) { lines <- line }, funcr.Options{})
	return newLaptopIn(klog.NewContext(context.Background(), logger), t, userspace.Options{}.With(tuning)), lines
}

// newLaptopIn is newLaptop with the context that the backend is made with.
func newLaptopIn(ctx context.Context, t testing.TB, o userspace.Options) *laptop {
	t.Helper()
	if o.Addresses == nil {
		o.Addresses = userspace.Localhost{}
	}
	if o.Families == nil {
		o.Families = []model.Family{model.IPv4}
	}
	o.Host = &nodeaddr.Fake{}
	b, err := userspace.New(ctx, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return &laptop{fakemodel.NewDriver(t, fakemodel.Options{NewSink: func() sink.Sink { return b }}), b}
}

// freeNodePort returns a port that is free at 127.0.0.1. It is one of Kubernetes' node ports, outside the range from
// which the kernel assigns ports.
func freeNodePort(t testing.TB) uint16 {
	t.Helper()
	for try := 1; ; try++ {
		port := uint16(30000 + rand.IntN(2000))
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			require.NoError(t, l.Close())
			return port
		}
		require.Less(t, try, 1000, err)
	}
}

// web is a service with a TCP and a UDP port.
func web() *fakemodel.ServiceBuilder {
	return fakemodel.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).UDPPort("dns", 53)
}

// addr returns the address at which a port of default/web is served.
func (l *laptop) addr(t testing.TB, port string) netip.AddrPort {
	t.Helper()
	for _, s := range l.b.Listeners() {
		if s.Port.Port == port {
			return s.Addr
		}
	}
	t.Fatalf("port %s is not served", port)
	return netip.AddrPort{}
}

// dial connects to a port of default/web.
func (l *laptop) dial(t testing.TB, port string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", l.addr(t, port).String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// serve runs a TCP server that passes each connection to handle, and returns its address.
func serve(t testing.TB, handle func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	acceptAll(t, l, handle)
	return l.Addr().String()
}

// acceptAll passes each connection of a listener to handle, until the test ends.
func acceptAll(t testing.TB, l net.Listener, handle func(*net.TCPConn)) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go handle(c.(*net.TCPConn))
			}
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
}

// named runs a server that writes its name on each connection and closes it.
func named(t testing.TB, name string) string {
	return serve(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, name)
		_ = c.Close()
	})
}

// mirror runs a server that sends back what it receives.
func mirror(t testing.TB) string {
	return serve(t, func(c *net.TCPConn) {
		_, _ = io.Copy(c, c)
		_ = c.Close()
	})
}

// exchange sends text to a mirror and returns the answer.
func exchange(t testing.TB, c net.Conn, text string) string {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
	back := make([]byte, len(text))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = io.ReadFull(c, back)
	require.NoError(t, err)
	return string(back)
}

// who makes a connection and returns the name of the server.
func (l *laptop) who(t testing.TB) string {
	t.Helper()
	name, err := io.ReadAll(l.dial(t, "http"))
	require.NoError(t, err)
	return string(name)
}

// echo answers each datagram with a prefix.
func echo(t testing.TB, prefix string) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil && runtime.GOOS == "windows" {
		t.Skip("there is no UDP here: Wine 8 lacks a request that Go makes for each such socket: ", err)
	}
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for b := make([]byte, 1<<16); ; {
			n, from, err := c.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = c.WriteTo(append([]byte(prefix), b[:n]...), from)
			}
		}
	}()
	t.Cleanup(func() {
		_ = c.Close()
		<-ended
	})
	return c.LocalAddr().String()
}

func tcpEndpoint(target string) *model.Endpoint {
	return fakemodel.Endpoint("default/web:http/TCP", target).Build()
}

func udpEndpoint(target string) *model.Endpoint {
	return fakemodel.Endpoint("default/web:dns/UDP", target).Build()
}

// dialer returns a Dial function for connections that call closed when they are closed.
func dialer(closed func()) func(context.Context, string, netip.AddrPort) (net.Conn, error) {
	return func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, to.String())
		return &closeNotifier{c, closed}, err
	}
}

type closeNotifier struct {
	net.Conn
	closed func()
}

func (c *closeNotifier) Close() error {
	c.closed()
	return c.Conn.Close()
}
