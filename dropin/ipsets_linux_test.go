package dropin

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestIPSetsOfUpstream(t *testing.T) {
	for _, name := range []string{"KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP", "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
		"KUBE-IPVS-IPS"} {
		assert.True(t, upstreamSet(name), name)
	}
	for _, name := range []string{"KUBE-MINE", "CLUSTER-IP", "cali40all-ipam-pools", "KUBE-SRC-ABCDEF"} {
		assert.False(t, upstreamSet(name), name)
	}
}
