package userspace_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// BenchmarkConnection is a new connection with one byte each way, with the proxy and without.
func BenchmarkConnection(b *testing.B) {
	bothWays(b, func(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.Close() }, func(b *testing.B, dial func() net.Conn) {
		buffer := make([]byte, 1)
		for b.Loop() {
			c := dial()
			_, err := c.Write(buffer)
			require.NoError(b, err)
			_, err = io.ReadFull(c, buffer)
			require.NoError(b, err)
			require.NoError(b, c.(*net.TCPConn).SetLinger(0)) // no port stays in TIME_WAIT
			require.NoError(b, c.Close())
		}
	})
}

// BenchmarkThroughput sends a megabyte per operation over one connection.
func BenchmarkThroughput(b *testing.B) {
	bothWays(b, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c); _ = c.Close() },
		func(b *testing.B, dial func() net.Conn) {
			c := dial()
			defer c.Close()
			chunk := make([]byte, 1<<20)
			b.SetBytes(int64(len(chunk)))
			for b.Loop() {
				_, err := c.Write(chunk)
				require.NoError(b, err)
			}
		})
}

// bothWays runs a benchmark with a server, directly and through the backend.
func bothWays(b *testing.B, server func(*net.TCPConn), run func(*testing.B, func() net.Conn)) {
	target := serve(b, server)
	l := newLaptop(b, userspace.Options{})
	l.Set(web().Build(), tcpEndpoint(target))
	l.Sync()
	for _, way := range []struct{ name, addr string }{{"direct", target}, {"userspace", l.addr(b, "http").String()}} {
		b.Run(way.name, func(b *testing.B) {
			run(b, func() net.Conn {
				c, err := net.Dial("tcp", way.addr)
				require.NoError(b, err)
				return c
			})
		})
	}
}

// BenchmarkEndpoint is a Sync that replaces one endpoint, in clusters of several sizes. Each service has a listener.
func BenchmarkEndpoint(b *testing.B) {
	for _, services := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			// One namespace gets three quarters of all listeners.
			l := newLaptop(b, userspace.Options{}.With(userspace.Tuning{MaxListeners: 2 * services}))
			for i := range services {
				addr := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()
				name := fmt.Sprintf("default/s%d", i)
				l.Set(fakemodel.Service(name).ClusterIP(addr).Port("http", 80).Build(),
					fakemodel.Endpoint(name+":http/TCP", "127.0.0.1:1").Build())
			}
			l.Sync()
			old, next := fakemodel.Endpoint("default/s0:http/TCP", "127.0.0.1:1").Build(),
				fakemodel.Endpoint("default/s0:http/TCP", "127.0.0.1:2").Build()
			for b.Loop() {
				l.b.DeleteEndpoint(old.Key())
				l.b.SetEndpoint(next)
				require.NoError(b, l.b.Sync(b.Context()))
				old, next = next, old
			}
		})
	}
}
