package userspace_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// Megabytes both ways; the server speaks only after the client has ended its half.
func TestConnectionsAreCompleteAndEndByHalves(t *testing.T) {
	l := newLaptop(t, userspace.Options{})
	l.Set(web().Build(), tcpEndpoint(serve(t, func(c *net.TCPConn) {
		all, err := io.ReadAll(c)
		if err == nil {
			_, _ = c.Write(all)
		}
		_ = c.Close()
	})))
	l.Sync()
	sent := make([]byte, 4<<20)
	rng := rand.NewChaCha8([32]byte{})
	_, _ = rng.Read(sent)
	c := l.dial(t, "http")
	_, err := c.Write(sent)
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(sent, got), "%d bytes sent, %d came back", len(sent), len(got))
}

// notUnderWine skips a test that depends on every reset being reported.
func notUnderWine(t *testing.T) {
	if os.Getenv("KPL_FAKE_HNS") == "1" { // testing/wine
		t.Skip("under Wine the kernel is Linux, which reports a reset to a read or a write, and nobody can ask it")
	}
}

func TestAResetIsPassedOn(t *testing.T) {
	notUnderWine(t)
	l := newLaptop(t, userspace.Options{})
	seen := make(chan error, 1)
	l.Set(web().Build(), tcpEndpoint(serve(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("x"))
		_, err := io.ReadAll(c)
		seen <- err
		_ = c.Close()
	})))
	l.Sync()
	c := l.dial(t, "http")
	_, err := io.ReadFull(c, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, c.SetLinger(0))
	require.NoError(t, c.Close())
	assert.Error(t, <-seen, "the server sees a reset, not the end")
}

// A server that resets while it is still receiving has not ended regularly, whether the relay's read or its write
// fails.
func TestAResetInTheMiddleOfATransferIsPassedOn(t *testing.T) {
	notUnderWine(t)
	l := newLaptop(t, userspace.Options{})
	l.Set(web().Build(), tcpEndpoint(serve(t, func(c *net.TCPConn) {
		_, _ = io.CopyN(io.Discard, c, 1<<20)
		_ = c.SetLinger(0)
		_ = c.Close()
	})))
	l.Sync()
	for range 50 {
		c := l.dial(t, "http")
		_, err := io.CopyN(c, rand.NewChaCha8([32]byte{}), 4<<20)
		if err == nil {
			_, err = io.ReadAll(c)
		}
		require.Error(t, err, "the client sees a reset, not the end")
		_ = c.Close()
	}
}

// A server that closes its half while it is still receiving has ended regularly: the other half goes on.
func TestAHalfThatEndsWhileTheOtherIsBusyIsNoReset(t *testing.T) {
	l := newLaptop(t, userspace.Options{})
	received := make(chan int64, 1)
	l.Set(web().Build(), tcpEndpoint(serve(t, func(c *net.TCPConn) {
		_ = c.CloseWrite()
		n, err := io.Copy(io.Discard, c)
		if err != nil {
			n = -1
		}
		received <- n
		_ = c.Close()
	})))
	l.Sync()
	for range 50 {
		c := l.dial(t, "http")
		_, err := io.CopyN(c, rand.NewChaCha8([32]byte{}), 1<<20)
		require.NoError(t, err)
		_, err = io.ReadAll(c)
		require.NoError(t, err)
		require.NoError(t, c.CloseWrite())
		require.Equal(t, int64(1<<20), <-received)
		_ = c.Close()
	}
}

func TestNewConnectionsFollowTheEndpointsAndEstablishedOnesStay(t *testing.T) {
	l := newLaptop(t, userspace.Options{})
	l.Set(web().NoEndpoints().Build())
	l.Sync()
	require.Empty(t, l.b.Listeners(), "without endpoints nothing listens, so that the kernel refuses")

	first := tcpEndpoint(mirror(t))
	l.Set(web().Build(), first)
	l.Sync()
	established := l.dial(t, "http")
	// The backend chooses the endpoint when it accepts the connection, which is after Dial has returned.
	require.Equal(t, "first", exchange(t, established, "first"))

	l.Delete(first)
	l.Set(tcpEndpoint(named(t, "second")))
	l.Sync()
	assert.Equal(t, "second", l.who(t))
	assert.Equal(t, "first again", exchange(t, established, "first again"))

	l.Delete(web().Build())
	l.Sync()
	assert.Empty(t, l.b.Listeners())
}

func TestAClientWithAffinityStaysAndOthersAreSpread(t *testing.T) {
	l := newLaptop(t, userspace.Options{})
	one, two := tcpEndpoint(named(t, "one")), tcpEndpoint(named(t, "two"))
	l.Set(web().Affinity(time.Hour).Build(), one, two)
	l.Sync()
	home := l.who(t)
	for range 20 {
		require.Equal(t, home, l.who(t))
	}
	gone, other := one, "two"
	if home == "two" {
		gone, other = two, "one"
	}
	l.Delete(gone)
	l.Sync()
	require.Equal(t, other, l.who(t))

	l.Set(web().Build(), one, two)
	l.Sync()
	seen := map[string]bool{}
	for range 64 { // fails once in 2^63 runs
		seen[l.who(t)] = true
	}
	assert.Len(t, seen, 2)
}

// No connection fails because one endpoint refuses, while there are others.
func TestAnEndpointThatRefusesIsPassedOver(t *testing.T) {
	l := newLaptop(t, userspace.Options{})
	l.Set(web().Build(), tcpEndpoint(named(t, "one")), tcpEndpoint("127.0.0.1:1"))
	l.Sync()
	for range 20 {
		assert.Equal(t, "one", l.who(t))
	}
}

func TestAPortInUseFailsAloneAndIsTriedAgain(t *testing.T) {
	port := freeNodePort(t)
	taken, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	require.NoError(t, err)
	l := newLaptop(t, userspace.Options{Addresses: userspace.Existing{}})
	free := freeNodePort(t)
	l.Set(fakemodel.Service("default/web").ClusterIP("127.0.0.1").Port("http", port).Port("free", free).Build(),
		tcpEndpoint(named(t, "one")), fakemodel.Endpoint("default/web:free/TCP", "127.0.0.1:1").Build())
	err = l.TrySync()
	var failed *sink.PortError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, "default/web:http/TCP", failed.Port.String())
	assert.Zero(t, sink.FailedFamilies(err), "the family has not failed")
	assert.Equal(t, free, l.addr(t, "free").Port())

	require.NoError(t, taken.Close())
	l.Resync()
	assert.Equal(t, "one", l.who(t))
}

// The next process gets the sockets: new connections wait for it, and the old process serves the established ones to
// their end.
func TestARestartWithSocketsLosesNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows cannot hand sockets over")
	}
	endpoint := tcpEndpoint(mirror(t))
	before := newLaptop(t, userspace.Options{})
	before.Set(web().Build(), endpoint)
	before.Sync()
	established := before.dial(t, "http")
	require.Equal(t, "before", exchange(t, established, "before"))
	at := before.addr(t, "http")
	sockets, err := before.b.Sockets()
	require.NoError(t, err)
	drained := make(chan error, 1)
	accepted, err := net.Dial("tcp", at.String()) // either process may accept it
	require.NoError(t, err)
	go func() { drained <- before.b.Drain(context.Background()) }()
	for len(before.b.Listeners()) > 0 {
		runtime.Gosched()
	}
	waits, err := net.Dial("tcp", at.String())
	require.NoError(t, err, "the listener's queue exists while nobody accepts")

	after := newLaptop(t, userspace.Options{Sockets: sockets})
	after.Set(web().Build(), endpoint)
	after.Sync()
	assert.Equal(t, at, after.addr(t, "http"))
	for _, c := range []net.Conn{established, accepted, waits} {
		assert.Equal(t, "after", exchange(t, c, "after"))
		require.NoError(t, c.Close())
	}
	require.NoError(t, <-drained)
}

// The next process finds a socket that another program had moved to the second number of its frontend, whether that
// program is still there or not.
func TestARestartKeepsASocketAtItsSecondNumber(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows cannot hand sockets over")
	}
	before := newLaptop(t, userspace.Options{})
	before.Set(web().Build(), tcpEndpoint(named(t, "one")))
	before.Sync()
	taken := before.addr(t, "http")
	require.NoError(t, before.b.Close())
	other, err := net.Listen("tcp", taken.String())
	require.NoError(t, err)

	before = newLaptop(t, userspace.Options{})
	before.Set(web().Build(), tcpEndpoint(named(t, "one")))
	before.Sync()
	at := before.addr(t, "http")
	require.NotEqual(t, taken, at)
	for _, there := range []bool{true, false} {
		sockets, err := before.b.Sockets()
		require.NoError(t, err)
		if !there {
			require.NoError(t, other.Close())
		}
		require.NoError(t, before.b.Close())
		before = newLaptop(t, userspace.Options{Sockets: sockets})
		before.Set(web().Build(), tcpEndpoint(named(t, "one")))
		before.Sync()
		assert.Equal(t, at, before.addr(t, "http"), "the other program is there: %v", there)
		assert.Equal(t, "one", before.who(t))
	}
}

// Clients whose connections are dropped leave room for others.
func TestDroppedConnectionsDoNotUseUpTheOthers(t *testing.T) {
	const most = 16
	l := newLaptop(t, userspace.Options{}.With(userspace.Tuning{MaxConnections: most}))
	l.Set(web().Build(), tcpEndpoint(named(t, "a")),
		fakemodel.Service("default/elsewhere").ClusterIP("10.96.0.12").Port("far", 80).InternalLocal().Build(),
		fakemodel.Endpoint("default/elsewhere:far/TCP", "192.0.2.9:80").Build())
	l.Sync()
	far, ended := l.addr(t, "far").String(), make(chan error, 2*most)
	for range 2 * most {
		c, err := net.Dial("tcp", far)
		if err != nil { // a reset may be that fast
			ended <- err
			continue
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}()
	}
	for range 2*most - most/8 {
		require.Error(t, <-ended)
	}
	assert.Equal(t, "a", l.who(t))
	assert.Empty(t, ended, "the others are still held")
}

// readError returns the error that a connection ends with. It is not that nothing came for a minute.
func readError(t *testing.T, c net.Conn) error {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	text, err := io.ReadAll(c)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	if err == nil && len(text) == 0 && runtime.GOOS == "windows" {
		return io.EOF // Wine does not tell of a reset that comes before somebody reads
	}
	return err
}

// end connects to a port of default/web and returns the error that the connection ends with.
func (l *laptop) end(t *testing.T, port string) error {
	t.Helper()
	c, err := net.Dial("tcp", l.addr(t, port).String())
	if err != nil { // it was reset at once
		return err
	}
	defer c.Close()
	return readError(t, c)
}

func TestIdleConnectionsEnd(t *testing.T) {
	l := newLaptop(t, userspace.Options{}.With(userspace.Tuning{TCPEstablishedTimeout: time.Millisecond}))
	l.Set(web().Build(), tcpEndpoint(mirror(t)))
	l.Sync()
	assert.Error(t, l.end(t, "http"))
}

// A server that never ends its half.
func TestConnectionsThatOneSideHasLeftEnd(t *testing.T) {
	l := newLaptop(t, userspace.Options{}.With(userspace.Tuning{TCPCloseWaitTimeout: time.Millisecond}))
	released := make(chan struct{})
	defer close(released)
	l.Set(web().Build(), tcpEndpoint(serve(t, func(c *net.TCPConn) {
		<-released
		_ = c.Close()
	})))
	l.Sync()
	c := l.dial(t, "http")
	require.NoError(t, c.CloseWrite())
	assert.Error(t, readError(t, c))
}

// Clients of one service hold all connections; another service is served at their expense.
func TestAServiceDoesNotTakeTheConnectionsOfOthers(t *testing.T) {
	const most = 16
	l, lines := newLoggingLaptop(t, userspace.Tuning{MaxConnections: most})
	l.Set(web().Build(), tcpEndpoint(mirror(t)),
		fakemodel.Service("other/web").ClusterIP("10.96.0.12").Port("other", 80).Build(),
		fakemodel.Endpoint("other/web:other/TCP", mirror(t)).Build())
	l.Sync()
	held := map[string][]net.Conn{}
	hold := func(port string, n int) {
		for range n {
			c := l.dial(t, port)
			require.Equal(t, "hello", exchange(t, c, "hello"))
			held[port] = append(held[port], c)
		}
	}
	hold("http", most)
	require.Error(t, l.end(t, "http"), "its own are not idle")
	require.Contains(t, <-lines, "Connection limit reached: new connections are reset")
	hold("other", most/2)
	for _, c := range held["other"] {
		require.Equal(t, "hello", exchange(t, c, "hello"))
	}
	alive := func() (n int) {
		for _, c := range held["http"] {
			_, _ = io.WriteString(c, "x")
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
			if _, err := c.Read(make([]byte, 1)); err == nil {
				n++
			}
		}
		return n
	}
	// A connection that is replaced ends soon, not at once.
	require.Eventually(t, func() bool { return alive() <= most/2 }, time.Minute, time.Millisecond)
	assert.Equal(t, most/2, alive())
	assert.Empty(t, lines, "it is logged once in a while")
}

// A connection to itself would make another one, and so on until there are no more.
func TestItDoesNotConnectToItself(t *testing.T) {
	l, lines := newLoggingLaptop(t, userspace.Tuning{MaxConnections: 64})
	other := fakemodel.Service("default/other").ClusterIP("10.96.0.12").Port("other", 80).Build()
	l.Set(web().Build(), other, tcpEndpoint("127.0.0.1:1"),
		fakemodel.Endpoint("default/other:other/TCP", "127.0.0.1:1").Build())
	l.Sync()
	itself := tcpEndpoint(l.addr(t, "other").String()) // web -> other -> web
	l.Delete(tcpEndpoint("127.0.0.1:1"), fakemodel.Endpoint("default/other:other/TCP", "127.0.0.1:1").Build())
	l.Set(itself, fakemodel.Endpoint("default/other:other/TCP", l.addr(t, "http").String()).Build())
	l.Sync()
	require.Error(t, l.end(t, "http"))
	require.Contains(t, <-lines, "Not using an endpoint that is an address of a service")

	good := tcpEndpoint(named(t, "good"))
	l.Set(good)
	l.Sync()
	assert.Equal(t, "good", l.who(t), "another endpoint is used")

	l.Delete(itself, good)
	l.Set(tcpEndpoint(l.addr(t, "http").String()))
	l.Sync()
	require.Error(t, l.end(t, "http"))
}

func TestAnEndpointIsTriedOnceForAConnection(t *testing.T) {
	tried := make(chan netip.AddrPort, 10)
	dial := func(_ context.Context, _ string, to netip.AddrPort) (net.Conn, error) {
		tried <- to
		return nil, errors.New("connection refused")
	}
	l := newLaptop(t, userspace.Options{}.With(userspace.Tuning{Dial: dial}))
	l.Set(web().Build(), tcpEndpoint("192.0.2.1:80"), tcpEndpoint("192.0.2.2:80"))
	l.Sync()
	require.Error(t, l.end(t, "http"))
	require.Len(t, tried, 2)
	assert.NotEqual(t, <-tried, <-tried)
}

// An endpoint has all its time to answer, however long it takes until its socket can be opened.
func TestWaitingForASocketIsNoFaultOfTheEndpoint(t *testing.T) {
	var opened time.Time
	early := make(chan time.Duration, 10)
	l := newLaptop(t, userspace.Options{Open: func(open func() error) error {
		opened = time.Now()
		return open()
	}}.With(userspace.Tuning{DialTimeout: time.Hour, Dial: func(ctx context.Context, _ string,
		_ netip.AddrPort) (net.Conn, error) {
		ends, _ := ctx.Deadline()
		early <- opened.Add(time.Hour).Sub(ends)
		return nil, errors.New("connection refused")
	}}))
	l.Set(web().Build(), tcpEndpoint("192.0.2.1:80"))
	l.Sync()
	require.Error(t, l.end(t, "http"))
	require.LessOrEqual(t, <-early, time.Duration(0))
}

// Of a service with too many ports some are served; of a service in another namespace all are.
func TestAServiceDoesNotTakeTheListenersOfOthers(t *testing.T) {
	l := newLaptop(t, userspace.Options{}.With(userspace.Tuning{MaxListeners: 16}))
	many := fakemodel.Service("many/ports").ClusterIP("10.96.0.1")
	for i := range 100 {
		many.Port(fmt.Sprint("p", i), uint16(1+i))
		l.Set(fakemodel.Endpoint(fmt.Sprintf("many/ports:p%d/TCP", i), "127.0.0.1:1").Build())
	}
	l.Set(many.Build(), web().Build(), tcpEndpoint(named(t, "web")))
	err := l.TrySync()
	var failed *sink.PortError
	require.ErrorAs(t, err, &failed)
	assert.ErrorContains(t, err, "too many listeners (limit for all services: 16)")
	assert.Zero(t, sink.FailedFamilies(err), "the family has not failed")
	assert.Equal(t, "web", l.who(t))
	assert.Len(t, l.b.Listeners(), 12+1)

	l.Delete(many.Build())
	l.Sync()
	assert.Len(t, l.b.Listeners(), 1)
}

func TestADroppedConnectionCannotSendForLong(t *testing.T) {
	l := newLaptop(t, userspace.Options{})
	l.Set(fakemodel.Service("default/elsewhere").ClusterIP("10.96.0.12").Port("far", 80).InternalLocal().Build(),
		fakemodel.Endpoint("default/elsewhere:far/TCP", "192.0.2.9:80").Build())
	l.Sync()
	_, err := io.CopyN(l.dial(t, "far"), rand.NewChaCha8([32]byte{}), 64<<20) // far more than sockets buffer
	assert.Error(t, err)
}

// Thousands of frontends that cannot be served cost those nothing that can.
func TestUnservedPortsCostNothingUntilTheyAreTriedAgain(t *testing.T) {
	const many = 1000
	l := newLaptop(t, userspace.Options{}.With(userspace.Tuning{MaxListeners: 2}))
	s := fakemodel.Service("many/ports").ClusterIP("10.96.0.11")
	for i := range many {
		s.Port(fmt.Sprint("p", i), uint16(1+i))
		l.Set(fakemodel.Endpoint(fmt.Sprintf("many/ports:p%d/TCP", i), "127.0.0.1:1").Build())
	}
	l.Set(web().Build(), tcpEndpoint("127.0.0.1:1"), s.Build())
	require.Error(t, l.TrySync())
	endpoints := []*model.Endpoint{tcpEndpoint("127.0.0.1:1"), tcpEndpoint("127.0.0.1:2")}
	allocations := testing.AllocsPerRun(10, func() {
		l.b.DeleteEndpoint(endpoints[0].Key())
		l.b.SetEndpoint(endpoints[1])
		assert.Len(t, sink.PortErrors(l.b.Sync(t.Context())), many-1)
		slices.Reverse(endpoints)
	})
	assert.Less(t, allocations, float64(many))
}

// The error of a port says whether outside clients reach it.
func TestAnErrorSaysWhetherAListenerForOutsideClientsIsLeft(t *testing.T) {
	laptop := func(listeners int) *laptop {
		o := userspace.Options{Addresses: userspace.Existing{}}
		return newLaptop(t, o.With(userspace.Tuning{MaxListeners: listeners}))
	}
	l := laptop(1)
	s := fakemodel.Service("default/web").ClusterIP("127.0.0.2").Port("http", freeNodePort(t))
	sync := func() []*sink.PortError {
		l.Set(s.Build(), tcpEndpoint("127.0.0.1:1"))
		return sink.PortErrors(l.TrySync())
	}
	require.Empty(t, sync())
	failed := func(want bool) {
		t.Helper()
		errs := sync()
		require.Len(t, errs, 1)
		assert.Equal(t, want, errs[0].ServesExternal, errs[0])
	}
	s.ExternalIP("127.0.0.3")
	failed(false)
	require.NoError(t, l.b.Close())
	l = laptop(4) // a port may have half of them
	require.Empty(t, sync())
	s.ExternalIP("127.0.0.4")
	failed(true)
}

// Clients are cut off because this process has too few file descriptors, which is not an endpoint's fault.
func TestThatFileDescriptorsHaveRunOutIsLogged(t *testing.T) {
	dial := func(context.Context, string, netip.AddrPort) (net.Conn, error) {
		return nil, os.NewSyscallError("socket", syscall.EMFILE)
	}
	l, lines := newLoggingLaptop(t, userspace.Tuning{Dial: dial})
	l.Set(web().Build(), tcpEndpoint("192.0.2.1:80"))
	l.Sync()
	require.Error(t, l.end(t, "http"))
	assert.Contains(t, <-lines, `"Cannot connect to endpoints"`)
	assert.Empty(t, lines, "the other attempts")
}
