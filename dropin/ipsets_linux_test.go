package dropin

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestIPSetsOfUpstream(t *testing.T) {
	for _, name := range []string{"KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP", "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
		"KUBE-IPVS-IPS", "KUBE-LOAD-BALANCER-MASQ", "KUBE-NODE-PORT-SCTP", "KUBE-NODE-PORT-LOCAL-SCTP",
		"KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-6-LOAD-BALANCER-SOURCE-IP",
		// kube-proxy cuts those for IPv6 at 31 characters
		"KUBE-6-LOAD-BALANCER-SOURCE-CID", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"} {
		assert.True(t, upstreamSet(name), name)
	}
	for _, name := range []string{"KUBE-MINE", "CLUSTER-IP", "cali40all-ipam-pools", "KUBE-SRC-ABCDEF",
		"KUBE-6-", "KUBE-LOAD-BALANCER-SOURCE-CID"} {
		assert.False(t, upstreamSet(name), name)
	}
}
