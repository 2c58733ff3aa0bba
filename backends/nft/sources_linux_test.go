package nft_test

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A list of source ranges that is long enough for a set lets in the addresses of its ranges, and no others.
func TestALongListOfSourcesLetsItsRangesIn(t *testing.T) {
	flows := backendtest.NewFlows(t, testkit.EnterNamespace(t))
	r := newKernelRig(t, nft.Options{}, false)
	s := fm.Service("default/dns").DetectsLocalPods().ClusterIP("10.96.255.1").LoadBalancerIP("10.96.255.9").
		UDPPort("dns", 80)
	allowed := map[int]bool{}
	for first := 0; first < 256; first += 16 {
		s.SourceRange(fmt.Sprintf("10.1.3.%d/32", first), fmt.Sprintf("10.1.3.%d/31", first+2),
			fmt.Sprintf("10.1.3.%d/30", first+8))
		for _, n := range []int{0, 2, 3, 8, 9, 10, 11} {
			allowed[first+n] = true
		}
	}
	r.Set(backendtest.Node(), s.Build(), flows.Endpoint(1))
	r.Sync()
	text, err := backendtest.Ruleset(t.Context())
	require.NoError(t, err)
	require.Contains(t, text, "set ranges-")

	for n := range 256 {
		// What the node itself sends and a rule drops, the system call reports.
		from := &net.UDPAddr{IP: net.IPv4(10, 1, 3, byte(n)), Port: 10000}
		c, err := net.DialUDP("udp4", from, &net.UDPAddr{IP: net.IPv4(10, 96, 255, 9), Port: 80})
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute))) // only what fails takes so long
		_, err = c.Write([]byte("hello"))
		if allowed[n] {
			require.NoError(t, err, "from %v", from)
			_, err = c.Read(make([]byte, 16))
			assert.NoError(t, err, "from %v", from)
		} else {
			assert.ErrorIs(t, err, syscall.EPERM, "from %v", from)
		}
		require.NoError(t, c.Close())
	}
}
