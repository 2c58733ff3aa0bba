package backendtest

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// Flows makes new flows in a namespace in which a service, 10.96.255.1:80/UDP, has up to 12 endpoints, 10.1.0.1 to
// 10.1.0.12, that answer for as long as the test runs, whether they belong to the service or not: a flow that is lost
// was sent nowhere.
type Flows struct {
	t        testing.TB
	ns       netns.NsHandle
	finished sync.WaitGroup
}

// EndpointPort is the port of the endpoints.
const EndpointPort = 8080

// NewFlows makes the namespace ready that the thread of the test is in: addresses, and endpoints that answer.
func NewFlows(t testing.TB, ns netns.NsHandle) *Flows {
	t.Helper()
	f := &Flows{t: t, ns: ns}
	lo, err := netlink.LinkByName("lo")
	check(t, err)
	check(t, netlink.LinkSetUp(lo))
	addr, err := netlink.ParseAddr("10.1.0.0/16") // on the loopback interface that makes all of them local
	check(t, err)
	check(t, netlink.AddrAdd(lo, addr))
	vips, err := netlink.ParseIPNet("10.96.0.0/16")
	check(t, err)
	check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: vips}))
	t.Cleanup(f.finished.Wait)
	for i := 1; i <= 12; i++ {
		f.answer(f.EndpointAddr(i))
	}
	return f
}

func (f *Flows) answer(at *unix.SockaddrInet4) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	check(f.t, err)
	check(f.t, unix.Bind(fd, at))
	check(f.t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}))
	ctx := f.t.Context()
	f.finished.Go(func() {
		defer func() { _ = unix.Close(fd) }()
		buf := make([]byte, 16)
		for ctx.Err() == nil {
			if n, from, err := unix.Recvfrom(fd, buf, 0); err == nil {
				_ = unix.Sendto(fd, buf[:n], 0, from)
			}
		}
	})
}

// VIP is where the service is.
func (f *Flows) VIP() *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: 80, Addr: [4]byte{10, 96, 255, 1}}
}

// EndpointAddr is where the i-th endpoint is.
func (f *Flows) EndpointAddr(i int) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: EndpointPort, Addr: [4]byte{10, 1, 0, byte(i)}}
}

// Service returns the service.
func (f *Flows) Service() *model.Service {
	return fm.Service("default/dns").DetectsLocalPods().ClusterIP(netip.AddrFrom4(f.VIP().Addr).String()).
		UDPPort("dns", 80).Build()
}

// Endpoint returns the i-th endpoint, from 1 to 12, as one of the service.
func (f *Flows) Endpoint(i int) *model.Endpoint {
	target := netip.AddrPortFrom(netip.AddrFrom4(f.EndpointAddr(i).Addr), EndpointPort)
	return fm.Endpoint("default/dns:dns/UDP", target.String()).Build()
}

// Flow makes a new flow and reports whether it was answered.
func (f *Flows) Flow(i int, to *unix.SockaddrInet4) (answered bool) {
	f.Open(i, func(fd int) {
		check(f.t, unix.Sendto(fd, []byte("hello"), 0, to))
		answered = isAnswered(fd)
	})
	return answered
}

// Open opens the socket of the i-th client: 20,000 ports of each of many addresses, so that none is used again while
// the kernel remembers it.
func (f *Flows) Open(i int, use func(fd int)) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	check(f.t, err)
	defer func() { check(f.t, unix.Close(fd)) }()
	source := &unix.SockaddrInet4{Port: 10000 + i%20000, Addr: [4]byte{10, 1, 1, byte(1 + i/20000%250)}}
	check(f.t, unix.Bind(fd, source))
	check(f.t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	use(fd)
}

func isAnswered(fd int) bool {
	for {
		n, _, err := unix.Recvfrom(fd, make([]byte, 16), 0)
		if !errors.Is(err, syscall.EINTR) {
			return err == nil && n == 5
		}
	}
}

// NoneIsLostDuring calls loop again and again, on a thread in the namespace, while it makes new flows, one after the
// other, each from a port of its own: 10,000, and more until loop has been called often enough. No flow may be lost,
// that is, not be answered within 10 s.
//
// KPL_FLOWS=200000 makes as many as a backend is meant to bear; that takes half a minute on two idle cores.
func (f *Flows) NoneIsLostDuring(loop func(round int) error, enough int64) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	var rounds atomic.Int64
	go func() {
		defer cancel()
		done <- osthread.In(int(f.ns), func() error {
			for ; ctx.Err() == nil; rounds.Add(1) {
				if err := loop(int(rounds.Load())); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	made, lost := 0, 0
	for n := Number(f.t, "KPL_FLOWS", 10000); ctx.Err() == nil && lost < 3 &&
		(made < n || rounds.Load() < enough && made < 100*n); made++ {
		if !f.Flow(made, f.VIP()) {
			lost++
		}
	}
	cancel()
	check(f.t, <-done)
	f.t.Logf("%d new flows, %d rounds", made, rounds.Load())
	if lost > 0 {
		f.t.Errorf("%d of %d new flows were lost", lost, made)
	}
	if lost == 0 && rounds.Load() < enough {
		f.t.Errorf("%d rounds, not %d", rounds.Load(), enough)
	}
}
