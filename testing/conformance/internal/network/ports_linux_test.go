package network

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestNthAddressOfARange(t *testing.T) {
	assert.Equal(t, netip.MustParseAddr("10.1.2.7"), Nth(netip.MustParsePrefix("10.1.2.0/24"), 7))
	assert.Equal(t, netip.MustParseAddr("10.1.3.4"), Nth(netip.MustParsePrefix("10.1.0.0/16"), 3*256+4))
	assert.Equal(t, netip.MustParseAddr("fd00::1:2"), Nth(netip.MustParsePrefix("fd00::/64"), 65536+2))
	assert.Panics(t, func() { Nth(netip.MustParsePrefix("10.1.2.0/24"), 256) })
}

func TestSourcePortsCollideWithNothing(t *testing.T) {
	seen := map[uint16]bool{}
	a := newPortAllocator(7)
	for range sourcePorts - len(ServerPorts()) {
		port, err := a.take(netip.Addr{}, netip.AddrPort{}, model.TCP, anyPort)
		require.NoError(t, err)
		assert.False(t, seen[port], "%d twice", port)
		seen[port] = true
	}
	_, err := a.take(netip.Addr{}, netip.AddrPort{}, model.TCP, anyPort)
	require.ErrorContains(t, err, "have been used")
	for _, p := range ServerPorts() {
		assert.False(t, seen[p])
	}
	for port := range seen {
		assert.False(t, port >= FirstReservedPort && port < EndOfReservedPorts, "%d", port)
	}
}

// The seed determines the order of the ports, and every port is used.
func TestSourcePortsComeInTheOrderOfTheSeed(t *testing.T) {
	order := func(seed uint64) (ports []uint16) {
		a := newPortAllocator(seed)
		for _, band := range append(PortBands(), anyPort, anyPort) {
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
		assert.Equal(t, 1, len(slices.DeleteFunc(PortBands(), func(b PortBand) bool {
			return sourcePort(n) < b.first || sourcePort(n) > b.last
		})), "%d is in one band", sourcePort(n))
	}
}
