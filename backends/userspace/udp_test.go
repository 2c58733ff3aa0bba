package userspace_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
)

// udpClient is a client's socket.
type udpClient struct {
	net.Conn
	t *testing.T
}

func (l *laptop) udp(t *testing.T) udpClient {
	c, err := net.Dial("udp", l.addr(t, "dns").String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return udpClient{c, t}
}

// ask sends a datagram and returns the answer.
func (c udpClient) ask(text string) string {
	c.t.Helper()
	_, err := c.Write([]byte(text))
	require.NoError(c.t, err)
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	b := make([]byte, 1<<16)
	n, err := c.Read(b)
	require.NoError(c.t, err)
	return string(b[:n])
}

func TestDatagramsOfEverySizeAreForwarded(t *testing.T) {
	l := newLaptop(t, userspace.Options{})
	l.Set(web().Build(), udpEndpoint(echo(t, "one ")))
	l.Sync()
	c := l.udp(t)
	for _, size := range []int{0, 1, 512, 1472, 9000} { // the default limit of macOS is little above
		text := strings.Repeat("x", size)
		assert.Equal(t, "one "+text, c.ask(text))
	}
}

func TestAFlowKeepsItsEndpointWhileThatServes(t *testing.T) {
	l := newLaptop(t, userspace.Options{})
	one, two := udpEndpoint(echo(t, "one ")), udpEndpoint(echo(t, "two "))
	l.Set(web().Build(), one)
	l.Sync()
	c := l.udp(t)
	require.Equal(t, "one hello", c.ask("hello"))
	l.Set(two)
	l.Sync()
	for range 20 {
		require.Equal(t, "one hello", c.ask("hello"))
	}
	l.Delete(one)
	l.Sync()
	assert.Equal(t, "two hello", c.ask("hello"))
}

// With a limit of two flows, a third one ends one of them. Its client gets a new flow with its next datagram.
func TestFlowsAreBounded(t *testing.T) {
	l := newLaptop(t, userspace.Options{}.With(userspace.Tuning{MaxFlows: 2}))
	l.Set(web().Build(), udpEndpoint(echo(t, "")))
	l.Sync()
	clients := []udpClient{l.udp(t), l.udp(t), l.udp(t)}
	for range 3 {
		for _, c := range clients {
			assert.Equal(t, "hello", c.ask("hello"))
		}
	}
}

func TestAnIdleFlowEnds(t *testing.T) {
	ended := make(chan struct{}, 1)
	l := newLaptop(t, userspace.Options{}.With(userspace.Tuning{UDPTimeout: time.Millisecond, Dial: dialer(func() {
		select {
		case ended <- struct{}{}:
		default:
		}
	})}))
	l.Set(web().Build(), udpEndpoint(echo(t, "")))
	l.Sync()
	_, err := l.udp(t).Write([]byte("hello"))
	require.NoError(t, err)
	<-ended
}

// A datagram to itself would go round and round.
func TestADatagramDoesNotGoRound(t *testing.T) {
	l, lines := newLoggingLaptop(t, userspace.Tuning{MaxFlows: 64})
	one := udpEndpoint(echo(t, "one "))
	l.Set(web().Build(), one)
	l.Sync()
	l.Delete(one)
	l.Set(udpEndpoint(l.addr(t, "dns").String()))
	l.Sync()
	_, err := l.udp(t).Write([]byte("hello"))
	require.NoError(t, err)
	require.Contains(t, <-lines, "Not using an endpoint that is an address of a service")
}
