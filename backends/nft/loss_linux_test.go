package nft_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// flows is how many new flows the tests below make. KPL_FLOWS=200000 makes as many as the backend is meant to bear; that
// takes half a minute on two cores that have nothing else to do.
func flows(t testing.TB) int {
	if s := os.Getenv("KPL_FLOWS"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		return n
	}
	return 10000
}

// lossTest is a namespace in which a service, 10.96.255.1:80/UDP, has up to 12 endpoints, 10.1.0.1 to 10.1.0.12, that
// answer for as long as the test runs, whether they belong to the service or not: what is lost was led nowhere.
type lossTest struct {
	testing.TB
	ns       netns.NsHandle
	finished sync.WaitGroup
}

const lossPort = 8080

var lossVIP = unix.SockaddrInet4{Port: 80, Addr: [4]byte{10, 96, 255, 1}}

func newLossTest(t testing.TB) *lossTest {
	l := &lossTest{TB: t, ns: testns.Enter(t)}
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	addr, err := netlink.ParseAddr("10.1.0.0/16") // on the loopback interface that makes all of them local
	require.NoError(t, err)
	require.NoError(t, netlink.AddrAdd(lo, addr))
	vips, err := netlink.ParseIPNet("10.96.0.0/16")
	require.NoError(t, err)
	require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: vips}))
	for i := 1; i <= 12; i++ {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Port: lossPort, Addr: [4]byte{10, 1, 0, byte(i)}}))
		require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}))
		ctx := t.Context()
		l.finished.Go(func() {
			defer unix.Close(fd)
			buf := make([]byte, 16)
			for ctx.Err() == nil {
				if n, from, err := unix.Recvfrom(fd, buf, 0); err == nil {
					_ = unix.Sendto(fd, buf[:n], 0, from)
				}
			}
		})
	}
	t.Cleanup(l.finished.Wait)
	return l
}

func (l *lossTest) endpoint(i int) *model.Endpoint {
	return fm.Endpoint("default/dns:dns/UDP", netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), lossPort).String()).Build()
}

func (l *lossTest) service() []any {
	return []any{node, fm.Service("default/dns").DetectsLocalPods().ClusterIP("10.96.255.1").UDPPort("dns", 80).Build(),
		l.endpoint(1), l.endpoint(2), l.endpoint(3)}
}

// flow makes a new flow and tells whether it was answered.
func (l *lossTest) flow(i int, to unix.SockaddrInet4) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	require.NoError(l, err)
	defer unix.Close(fd)
	// 20,000 ports of each of many addresses, so that none comes again while the kernel remembers it.
	source := &unix.SockaddrInet4{Port: 10000 + i%20000, Addr: [4]byte{10, 1, 1, byte(1 + i/20000%250)}}
	require.NoError(l, unix.Bind(fd, source))
	require.NoError(l, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}))
	require.NoError(l, unix.Sendto(fd, []byte("hello"), 0, &to))
	for {
		n, _, err := unix.Recvfrom(fd, make([]byte, 16), 0)
		if !errors.Is(err, syscall.EINTR) {
			return err == nil && n == 5
		}
	}
}

// during does something in a loop, on a thread in the namespace, while it makes new flows, one after the other, each from a
// port of its own: as many as flows says, and on until the loop has been gone through often enough. No flow may be lost.
func (l *lossTest) during(loop func(round int) error, enough int64) {
	ctx, cancel := context.WithCancel(l.Context())
	done := make(chan error, 1)
	var rounds atomic.Int64
	go func() {
		done <- func() error {
			defer cancel()
			leave, err := enter(l.ns)
			if err != nil {
				return err
			}
			defer leave()
			for ; ctx.Err() == nil; rounds.Add(1) {
				if err := loop(int(rounds.Load())); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	made, lost := 0, 0
	for n := flows(l.TB); ctx.Err() == nil && (made < n || rounds.Load() < enough && made < 100*n); made++ {
		if !l.flow(made, lossVIP) {
			lost++
		}
	}
	cancel()
	require.NoError(l, <-done)
	l.Logf("%d new flows, %d rounds", made, rounds.Load())
	assert.Zero(l, lost)
	assert.GreaterOrEqual(l, rounds.Load(), enough)
}

func TestNoNewFlowIsLostWhileAServiceIsResized(t *testing.T) {
	l := newLossTest(t)
	r := newKernelRig(t)
	r.set(l.service()...)
	r.sync()
	l.during(func(round int) error {
		// 3 to 12 endpoints and back, and at each second step another endpoint in place of one that is there.
		if i := 4 + round/2%9; round%2 == 0 {
			r.model.DeleteEndpoint(l.endpoint(1 + round%3).Key())
			r.model.SetEndpoint(l.endpoint(i))
		} else {
			r.model.SetEndpoint(l.endpoint(1 + (round-1)%3))
			if round/18%2 == 1 {
				r.model.DeleteEndpoint(l.endpoint(i).Key())
			}
		}
		_, err := r.model.Flush(r.backend)
		return errors.Join(err, r.backend.Sync(t.Context()))
	}, 36)
}

func TestNoNewFlowIsLostWhileTheBackendIsRestarted(t *testing.T) {
	l := newLossTest(t)
	r := newKernelRig(t)
	r.set(l.service()...)
	r.sync()
	l.during(func(round int) error {
		r.restart()
		if round%2 == 0 { // something was missed in between
			r.model.DeleteEndpoint(l.endpoint(1).Key())
			r.model.SetEndpoint(l.endpoint(4))
		} else {
			r.model.DeleteEndpoint(l.endpoint(4).Key())
			r.model.SetEndpoint(l.endpoint(1))
			r.model.SetEndpoint(l.endpoint(5 + round%3))
			r.model.DeleteEndpoint(l.endpoint(5 + (round+1)%3).Key())
		}
		_, err := r.model.Flush(r.backend)
		return errors.Join(err, r.backend.Sync(t.Context()))
	}, 6)
}

func TestNftListsTheRulesetAtEveryMoment(t *testing.T) {
	nftPath := need.Program(t, "nft")
	testns.Enter(t)
	r := newKernelRig(t)
	r.set(everyFeature()...)
	r.sync()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	done := make(chan struct{})
	ns, err := netns.Get()
	require.NoError(t, err)
	defer ns.Close()
	go func() {
		defer close(done)
		defer cancel()
		leave, err := enter(ns)
		if !assert.NoError(t, err) {
			return
		}
		defer leave()
		for range 20 {
			out, err := exec.CommandContext(t.Context(), nftPath, "list", "ruleset").CombinedOutput()
			if !assert.NoError(t, err, "%s", out) {
				return
			}
		}
	}()
	for round := 0; ctx.Err() == nil; round++ {
		if round%2 == 0 {
			r.model.DeleteEndpoint(fm.Endpoint("shop/sticky:http/TCP", "10.244.2.9:80").Build().Key())
			r.model.DeleteService(model.ServiceName{Namespace: "shop", Name: "front"})
		} else {
			r.set(everyFeature()...)
		}
		r.sync()
	}
	<-done
}

// enter moves the goroutine's thread to a namespace.
func enter(ns netns.NsHandle) (leave func(), err error) {
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		return nil, err
	}
	if err := netns.Set(ns); err != nil {
		return nil, err
	}
	return func() {
		if netns.Set(before) == nil {
			runtime.UnlockOSThread()
		}
		before.Close()
	}, nil
}

// newKernelRig is a rig on the kernel, in the namespace of the test.
func newKernelRig(t *testing.T) *rig {
	r := &rig{t: t, options: nft.Options{}, repairs: true}
	r.start()
	t.Cleanup(func() { r.backend.Close() })
	return r
}

func TestNftListsWhateverTheNamesAre(t *testing.T) {
	need.Program(t, "nft")
	testns.Enter(t)
	r := newKernelRig(t)
	for _, v := range strange() {
		switch v := v.(type) {
		case *model.Node:
			r.backend.SetNode(v)
		case *model.Service:
			r.backend.SetService(v)
		case *model.Endpoint:
			r.backend.SetEndpoint(v)
		}
	}
	require.NoError(t, r.backend.Sync(t.Context()))
	listed, err := run(t.Context(), "nft", "list", "ruleset")
	require.NoError(t, err, listed)
	require.NoError(t, r.backend.Close()) // or it would repair at once
	_, err = run(t.Context(), "nft", "flush", "ruleset")
	require.NoError(t, err)
	load := exec.Command("nft", "-f", "-")
	load.Stdin = strings.NewReader(listed)
	out, err := load.CombinedOutput()
	require.NoError(t, err, "what nft lists loads again: %s", out)
}
