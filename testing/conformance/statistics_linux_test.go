package conformance

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

func TestNodePortsAreNoSourcePorts(t *testing.T) {
	for _, port := range []uint16{service{slot: 1}.nodePortOf(0), service{slot: 200}.nodePortOf(9)} {
		assert.GreaterOrEqual(t, port, uint16(network.FirstReservedPort))
		assert.Less(t, port, uint16(network.EndOfReservedPorts))
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
