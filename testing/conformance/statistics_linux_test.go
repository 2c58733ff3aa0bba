package conformance

import (
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestNthAddressOfARange(t *testing.T) {
	assert.Equal(t, netip.MustParseAddr("10.1.2.7"), nth(netip.MustParsePrefix("10.1.2.0/24"), 7))
	assert.Equal(t, netip.MustParseAddr("10.1.3.4"), nth(netip.MustParsePrefix("10.1.0.0/16"), 3*256+4))
	assert.Equal(t, netip.MustParseAddr("fd00::1:2"), nth(netip.MustParsePrefix("fd00::/64"), 65536+2))
	assert.Panics(t, func() { nth(netip.MustParsePrefix("10.1.2.0/24"), 256) })
}

func TestSourcePortsCollideWithNothing(t *testing.T) {
	seen := map[uint16]bool{}
	a := newPortAllocator(7)
	for range sourcePorts - len(serverPorts()) {
		port, err := a.take(netip.Addr{}, netip.AddrPort{}, model.TCP, anyPort)
		require.NoError(t, err)
		assert.False(t, seen[port], "%d twice", port)
		seen[port] = true
	}
	_, err := a.take(netip.Addr{}, netip.AddrPort{}, model.TCP, anyPort)
	require.ErrorContains(t, err, "have been used")
	for _, p := range serverPorts() {
		assert.False(t, seen[p])
	}
	for slot := 1; slot < 200; slot++ {
		assert.False(t, seen[service{slot: slot}.nodePortOf(5)])
	}
}

// The seed determines the order of the ports, and no part of them is left out.
func TestSourcePortsComeInTheOrderOfTheSeed(t *testing.T) {
	order := func(seed uint64) (ports []uint16) {
		a := newPortAllocator(seed)
		for _, band := range append(portBands(), anyPort, anyPort) {
			port, err := a.take(netip.Addr{}, netip.AddrPort{}, model.UDP, band)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, port, band.first)
			assert.LessOrEqual(t, port, band.last)
			ports = append(ports, port)
		}
		return ports
	}
	assert.Equal(t, order(1), order(1))
	assert.NotEqual(t, order(1), order(2))
	for n := range sourcePorts {
		assert.Equal(t, 1, len(slices.DeleteFunc(portBands(), func(b portBand) bool {
			return sourcePort(n) < b.first || sourcePort(n) > b.last
		})), "%d is in one band", sourcePort(n))
	}
}

func TestAttemptsReachEveryEndpoint(t *testing.T) {
	assert.Equal(t, 1, attempts(0))
	assert.Equal(t, 1, attempts(1))
	for n := 2; n < 20; n++ {
		missed := float64(n) * math.Pow(1-1/float64(n), float64(attempts(n)))
		assert.Less(t, missed, 1.0001e-12, "with %d endpoints", n)
		assert.Greater(t, missed, 1e-13, "with %d endpoints, no more attempts than it takes", n)
	}
}
