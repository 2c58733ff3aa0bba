package conformance

import (
	"math"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNthAddressOfARange(t *testing.T) {
	assert.Equal(t, netip.MustParseAddr("10.1.2.7"), nth(netip.MustParsePrefix("10.1.2.0/24"), 7))
	assert.Equal(t, netip.MustParseAddr("10.1.3.4"), nth(netip.MustParsePrefix("10.1.0.0/16"), 3*256+4))
	assert.Equal(t, netip.MustParseAddr("fd00::1:2"), nth(netip.MustParsePrefix("fd00::/64"), 65536+2))
	assert.Panics(t, func() { nth(netip.MustParsePrefix("10.1.2.0/24"), 256) })
}

func TestSourcePortsCollideWithNothing(t *testing.T) {
	seen := map[uint16]bool{}
	for n := range sourcePorts {
		port := sourcePort(n)
		assert.False(t, seen[port], "%d twice", port)
		seen[port] = true
	}
	for _, p := range serverPorts() {
		assert.False(t, seen[p])
	}
	for slot := 1; slot < 200; slot++ {
		assert.False(t, seen[service{slot: slot}.nodePortOf(5)])
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
