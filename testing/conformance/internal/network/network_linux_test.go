package network

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// testNetwork builds the network, or skips the test.
func testNetwork(t *testing.T) *Network {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	families, err := Families()
	need.That(t, err == nil, "network namespaces (root, or unshare -rn)")
	start := time.Now()
	n, err := New(families, 1)
	require.NoError(t, err)
	t.Logf("network built in %v", time.Since(start))
	t.Cleanup(func() {
		n.Close()
		testkit.NoLeak(t, leaks)
	})
	return n
}

func directFlow(from string, to netip.AddrPort, protocol model.Protocol) Attempt {
	return HostNamed(from).FlowTo(to, protocol, to.String())
}

func TestEveryHostReachesEveryServerDirectly(t *testing.T) {
	n := testNetwork(t)
	var flows []Attempt
	for _, from := range Hosts() {
		for _, to := range Hosts() {
			for _, f := range model.Families() {
				for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
					for _, port := range ServerPorts() {
						if n.namespaceOf(to) != n.namespaces[Client] {
							flows = append(flows, directFlow(from.Name, netip.AddrPortFrom(to.Addr(f), port), protocol))
						}
					}
				}
			}
		}
	}
	start := time.Now()
	got := make([]Seen, len(flows))
	Concurrently(len(flows), func(i int) { got[i] = n.Try(flows[i], DefaultTimeouts()) })
	for i, s := range got {
		want := oracle.Observation{Verdict: oracle.Deliver, Endpoint: flows[i].Destination, Source: flows[i].Source}
		assert.Equal(t, want, s.Observation, "%v: %v", flows[i], s)
	}
	t.Logf("%d flows in %v", len(flows), time.Since(start))
}

// Each of many pods answers with its own address. A server for one address answers with that, whatever its port.
func TestManyPodsHaveOneServer(t *testing.T) {
	n := testNetwork(t)
	for _, f := range n.families {
		require.NoError(t, n.ServeManyPods(f))
		for _, i := range []int{1, 70_000, 500_000} {
			pod := directFlow(LocalPod1, netip.AddrPortFrom(Nth(ManyPods(f), i), ManyPodsPort), model.TCP)
			assert.Equal(t, pod.Destination, n.Try(pod, DefaultTimeouts()).Endpoint, "%v", pod)
		}
		at := netip.AddrPortFrom(HostNamed(LocalPod2).Addr(f), ManyPodsPort)
		stop, err := n.Serve(LocalPod2, model.TCP, Wildcard(f, ManyPodsPort))
		require.NoError(t, err)
		one := directFlow(LocalPod1, at, model.TCP)
		assert.Equal(t, Wildcard(f, ManyPodsPort), n.Try(one, DefaultTimeouts()).Endpoint, "%v", one)
		stop()
	}
}

// SYNs reports where its own SYNs arrive; it ignores other connections.
func TestSYNsShowWhereTheyArrive(t *testing.T) {
	n := testNetwork(t)
	for _, f := range n.families {
		require.NoError(t, n.ServeManyPods(f))
		s, err := n.WatchSYNs(LocalPod1, f)
		require.NoError(t, err)
		defer s.Close()
		at := func(i int) netip.AddrPort { return netip.AddrPortFrom(Nth(ManyPods(f), i), ManyPodsPort) }
		const first, second, other, unrelated = 1, 500_000, 7, 8
		require.Equal(t, oracle.Deliver, n.Try(directFlow(LocalPod2, at(other), model.TCP), DefaultTimeouts()).Verdict)
		elsewhere := directFlow(LocalPod2, HostNamed(OtherNode).ServerAt(f), model.TCP)
		require.Equal(t, oracle.Deliver, n.Try(elsewhere, DefaultTimeouts()).Verdict)
		require.NoError(t, s.Send(netip.AddrPortFrom(at(unrelated).Addr(), 9)))
		for _, i := range []int{first, second, second} {
			require.NoError(t, s.Send(at(i)))
		}
		var pods []netip.Addr
		require.Eventually(t, func() bool {
			more, err := s.Arrived()
			require.NoError(t, err)
			pods = append(pods, more...)
			return len(pods) >= 4
		}, time.Minute, time.Millisecond)
		assert.ElementsMatch(t, []netip.Addr{at(other).Addr(), at(first).Addr(), at(second).Addr(), at(second).Addr()}, pods)
	}
}

// Each SYN starts a new connection, until all source ports have been used.
func TestSourcePortsOfSYNsCollideWithNothing(t *testing.T) {
	s := &SYNs{outFD: -1, from: netip.MustParseAddr("10.0.0.1"), next: map[netip.AddrPort]uint16{}}
	to, seen := netip.MustParseAddrPort("10.0.0.2:80"), map[uint16]bool{}
	for range sourcePorts {
		require.Error(t, s.Send(to), "there is no socket")
		port := s.next[to] - 1
		assert.False(t, seen[port] || port < 1024 || port >= FirstReservedPort && port < EndOfReservedPorts, port)
		seen[port] = true
	}
	require.Error(t, s.Send(to))
	assert.EqualValues(t, 1025, s.next[to], "from the first one on")
}

func TestWhatNobodyAnswersIsTold(t *testing.T) {
	n := testNetwork(t)
	for _, from := range Hosts() {
		for _, f := range model.Families() {
			for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
				closed := directFlow(from.Name, netip.AddrPortFrom(HostNamed(LocalPod1).Addr(f), 9), protocol)
				s := n.Try(closed, DefaultTimeouts())
				assert.Equal(t, oracle.Reject, s.Verdict, "%v, a closed port: %v", closed, s)
			}
			for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
				nobody := Nth(netip.MustParsePrefix(map[model.Family]string{
					model.IPv4: "192.0.2.0/24", model.IPv6: "2001:db8:e::/64"}[f]), 10)
				service := directFlow(from.Name, netip.AddrPortFrom(nobody, 80), protocol)
				start := time.Now()
				s := n.Try(service, DefaultTimeouts())
				assert.Equal(t, oracle.NotOurs, s.Verdict, "%v, which nothing translates: %v", service, s)
				assert.Less(t, time.Since(start), DefaultTimeouts().Answer, "the ICMP error is not waited for")
			}
		}
	}
}

// A machine that stalls for a moment does not count as one that loses packets.
func TestTCPRepeatsNothingSoon(t *testing.T) {
	n := testNetwork(t)
	for _, from := range Hosts() {
		for _, to := range []string{RemotePod1, LocalPod1} {
			// From the node to its pods the kernel made the route; to services it did not.
			if from.Name == TheNode && to == LocalPod1 || n.namespaceOf(from) == n.namespaceOf(HostNamed(to)) {
				continue
			}
			for _, f := range model.Families() {
				a := directFlow(from.Name, netip.AddrPortFrom(HostNamed(to).Addr(f), ServerPort), model.TCP)
				c, err := n.Open(a, time.Now().Add(DefaultTimeouts().Answer))
				require.NoError(t, err, "%v", a)
				_, err = c.Ask(time.Now().Add(DefaultTimeouts().Answer))
				assert.NoError(t, err, "%v", a)
				assert.NoError(t, c.sock.raw.Control(func(fd uintptr) {
					info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
					if assert.NoError(t, err) {
						assert.GreaterOrEqual(t, info.Rto, uint32(rtoMin*1000), "%v", a)
					}
				}))
				c.Close()
			}
		}
	}
}

// All that a backend can do to a connection is a result; only errors of the test's own sockets break the test.
func TestErrorsAreClassified(t *testing.T) {
	for _, tc := range []struct {
		name    string
		err     error
		want    string
		verdict oracle.Verdict
	}{
		{"a refusal", &networkError{errno: unix.ECONNREFUSED}, "reject: ", oracle.Reject},
		{"a reset of an accepted connection", &networkError{errno: unix.ECONNRESET},
			"reject after the connection was accepted: ", oracle.Reject},
		{"the same, noticed by a write", &networkError{errno: unix.EPIPE},
			"reject after the connection was accepted: ", oracle.Reject},
		{"a blackhole route", &networkError{errno: unix.EINVAL}, "drop: ", oracle.Drop},
		{"a route of type prohibit", &networkError{errno: unix.EACCES}, "reject: ", oracle.Reject},
		{"a route of type unreachable", &networkError{errno: unix.EHOSTUNREACH}, "reject: ", oracle.Reject},
		{"an end without an answer", errors.New("closed"), "drop: ", oracle.Drop},
		{"an answer that is none", garbledError{errors.New("HTTP/1.1 400")}, "something else: ", 0},
		{"an error that nobody expects", &networkError{errno: unix.ENOBUFS}, "something else: ", 0},
	} {
		s := classify(tc.err, time.Second)
		require.NoError(t, s.Broken, tc.name)
		assert.Equal(t, tc.verdict, s.Verdict, tc.name)
		assert.Contains(t, s.String(), tc.want, tc.name)
	}
	assert.ErrorContains(t, classify(brokenError{errors.New("no port left")}, 0).Broken, "no port left")
}
