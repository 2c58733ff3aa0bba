package conformance

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// testNetwork builds the network, or skips the test.
func testNetwork(t *testing.T) *network {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	families, err := machineFamilies()
	need.That(t, err == nil, "network namespaces (root, or unshare -rn)")
	start := time.Now()
	n, err := newNetwork(families, 1)
	require.NoError(t, err)
	t.Logf("network built in %v", time.Since(start))
	t.Cleanup(func() {
		n.close()
		goleak.VerifyNone(t, leaks)
	})
	return n
}

func directFlow(from string, to netip.AddrPort, protocol model.Protocol) attempt {
	p := placeNamed(from)
	return attempt{flow: flow{from: p, Flow: oracle.Flow{
		From: p.kind, Source: p.addr(model.FamilyOf(to.Addr())), Destination: to, Protocol: protocol}}}
}

func TestEveryPlaceReachesEveryServerDirectly(t *testing.T) {
	n := testNetwork(t)
	var flows []attempt
	for _, from := range places() {
		for _, to := range places() {
			for _, f := range model.Families() {
				for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
					for _, port := range serverPorts() {
						if n.namespaceOf(to) != n.client {
							flows = append(flows, directFlow(from.name, netip.AddrPortFrom(to.addr(f), port), protocol))
						}
					}
				}
			}
		}
	}
	start := time.Now()
	for i, s := range n.tryAll(t.Context(), flows, defaultPatience) {
		want := oracle.Observation{Verdict: oracle.Deliver, Endpoint: flows[i].Destination, Source: flows[i].Source}
		assert.Equal(t, want, s.Observation, "%v: %v", flows[i], s)
	}
	t.Logf("%d flows in %v", len(flows), time.Since(start))
}

func TestWhatNobodyAnswersIsTold(t *testing.T) {
	n := testNetwork(t)
	for _, from := range places() {
		for _, f := range model.Families() {
			for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
				closed := directFlow(from.name, netip.AddrPortFrom(placeNamed(localPod1).addr(f), 9), protocol)
				s := n.try(closed, defaultPatience)
				assert.Equal(t, oracle.Reject, s.Verdict, "%v, a closed port: %v", closed, s)
			}
			for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
				service := directFlow(from.name, netip.AddrPortFrom(nth(planOf(f).services, 10), 80), protocol)
				start := time.Now()
				s := n.try(service, defaultPatience)
				assert.Equal(t, oracle.NotOurs, s.Verdict, "%v, which nothing translates: %v", service, s)
				assert.Less(t, time.Since(start), defaultPatience.answer, "the ICMP error is not waited for")
			}
		}
	}
}

// A machine that stalls for a moment is not taken for one that loses packets.
func TestTCPRepeatsNothingSoon(t *testing.T) {
	n := testNetwork(t)
	for _, from := range places() {
		for _, to := range []string{remotePod1, localPod1} {
			// From the node to its pods the kernel made the route; to services it did not.
			if from.name == theNode && to == localPod1 || n.namespaceOf(from) == n.namespaceOf(placeNamed(to)) {
				continue
			}
			for _, f := range model.Families() {
				a := directFlow(from.name, netip.AddrPortFrom(placeNamed(to).addr(f), serverPort), model.TCP)
				c, err := n.open(a.flow, time.Now().Add(defaultPatience.answer))
				require.NoError(t, err, "%v", a)
				_, err = c.ask(time.Now().Add(defaultPatience.answer))
				assert.NoError(t, err, "%v", a)
				assert.NoError(t, c.sock.raw.Control(func(fd uintptr) {
					info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
					if assert.NoError(t, err) {
						assert.GreaterOrEqual(t, info.Rto, uint32(rtoMin*1000), "%v", a)
					}
				}))
				c.close()
			}
		}
	}
}
