package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

func TestNodePortsAreNoSourcePorts(t *testing.T) {
	for _, port := range []uint16{Service{Slot: 1}.NodePortOf(0), Service{Slot: 200}.NodePortOf(9)} {
		assert.GreaterOrEqual(t, port, uint16(network.FirstReservedPort))
		assert.Less(t, port, uint16(network.EndOfReservedPorts))
	}
}
