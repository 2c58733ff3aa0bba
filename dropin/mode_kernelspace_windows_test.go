package dropin

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The whole program on Windows, with a model of HNS and a cluster without an API server.
func TestModeKernelspaceServes(t *testing.T) {
	r := newRig(t, cluster()...)
	fake := r.hns
	empty := fake.Dump()
	r.machine.flows = noFlows{}
	stop := r.start(t, "--network-name=cbr0", "--cluster-cidr=10.244.0.0/16")
	require.Eventually(t,
		func() bool { return strings.Contains(fake.Dump(), "load balancer 10.96.0.10:80/TCP -> 8080") },
		time.Minute, time.Millisecond)
	require.NoError(t, stop())
	assert.Contains(t, fake.Dump(), "load balancer 10.96.0.10:80/TCP", "the rules stay")

	require.NoError(t, r.run("--cleanup", "--network-name=cbr0"))
	assert.Equal(t, empty, fake.Dump())
	assert.ErrorContains(t, r.run("--proxy-mode=iptables"), "kernelspace")
	assert.ErrorContains(t, r.run("--proxy-mode=kernelspace"), "KUBE_NETWORK")
}
