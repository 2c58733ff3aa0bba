package dropin

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	hnsdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestTheSectionWinkernelCounts(t *testing.T) {
	t.Setenv(networkVariable, "from-the-environment")
	c := v1alpha2.Default()
	o, err := kernelspaceOptions(c, backendOptions{Common: frontend.Common{
		Families: []model.Family{model.IPv4}}}, &machine{hnsRecord: "record"})
	require.NoError(t, err)
	assert.Equal(t, "from-the-environment", o.Network)
	assert.Empty(t, o.RootEndpoint)
	assert.Equal(t, "record", o.RecordFile)
	assert.EqualValues(t, 10256, o.HealthzPort)
	assert.Equal(t, []model.Family{model.IPv4}, o.Families)

	c.Winkernel = v1alpha2.WinkernelConfiguration{NetworkName: "overlay", SourceVip: "10.244.1.2", EnableDSR: true,
		RootHnsEndpointName: "root", ForwardHealthCheckVip: true}
	c.HealthzBindAddress = "[::]:9999"
	o, err = kernelspaceOptions(c, backendOptions{}, &machine{})
	require.NoError(t, err)
	assert.Equal(t, "overlay", o.Network)
	assert.Equal(t, netip.MustParseAddr("10.244.1.2"), o.SourceVIP)
	assert.True(t, o.DSR)
	assert.Equal(t, "root", o.RootEndpoint)
	assert.EqualValues(t, 9999, o.HealthzPort)
	c.Winkernel.RootHnsEndpointName = ""
	o, err = kernelspaceOptions(c, backendOptions{}, &machine{})
	require.NoError(t, err)
	assert.Equal(t, "cbr0", o.RootEndpoint)

	c.Winkernel.SourceVip = "x"
	_, err = kernelspaceOptions(c, backendOptions{}, &machine{})
	assert.EqualError(t, err, `winkernel.sourceVip: "x" is not an IP address`)
	t.Setenv(networkVariable, "")
	_, err = kernelspaceOptions(v1alpha2.Default(), backendOptions{}, &machine{})
	assert.ErrorContains(t, err, "KUBE_NETWORK")
}

func TestBackendsGetTheMetadataTheyRead(t *testing.T) {
	mode := kernelspace()
	assert.True(t, mode.readsMetadata, "package hns documents an annotation")
}

func TestKernelspaceSaysWhichFamiliesHNSHas(t *testing.T) {
	fake := hnsdataplane.NewFake()
	m := &machine{hns: fake}
	require.NoError(t, usableKernelspace(t.Context(), model.IPv6, m))
	fake.Supported.IPv6DualStack = false
	require.NoError(t, usableKernelspace(t.Context(), model.IPv4, m))
	require.ErrorIs(t, usableKernelspace(t.Context(), model.IPv6, m), hnsdataplane.ErrNotSupported)
}

func TestCleaningUpKernelspaceNeedsTheNetwork(t *testing.T) {
	m := &machine{hns: hnsdataplane.NewFake(), hnsRecord: t.TempDir() + "/record"}
	require.ErrorContains(t, cleanUpKernelspace(t.Context(), m), "--network-name")
	m.network = "cbr0"
	require.NoError(t, cleanUpKernelspace(t.Context(), m))
}

func TestModeKernelspaceStartsAndChangesNothingBeforeItsFirstSync(t *testing.T) {
	fake := hnsdataplane.NewFake()
	m := &machine{hns: fake, hnsRecord: t.TempDir() + "/state/record"}
	c := v1alpha2.Default()
	c.Winkernel.NetworkName = "cbr0"
	k := kernelspace()
	assert.Equal(t, v1alpha2.ProxyModeKernelspace, k.name)
	b, err := k.start(t.Context(), c, m, backendOptions{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	require.NoError(t, err)
	require.NoError(t, b.Close())
	assert.Empty(t, fake.TakeCalls().Writes)
	require.NoError(t, k.cleanUpUpstream(t.Context(), m))
}
