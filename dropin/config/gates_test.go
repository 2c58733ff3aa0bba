package config_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/component-base/featuregate"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

func TestFeatureGatesHaveKubeProxysDefaults(t *testing.T) {
	ours := map[featuregate.Feature]bool{
		config.AllowServiceExternalIPs: true, config.ComponentFlagz: true, config.ComponentStatusz: true,
		config.KubeProxyIPVS: true, config.KubeProxyNFTablesLocalhostNodePorts: false,
	}
	for _, test := range []struct {
		name    string
		set     map[string]bool
		differs []featuregate.Feature
	}{
		{"no gate", nil, nil},
		{"unknown ones", map[string]bool{"New": true, "Old": false}, nil},
		{"one that is on", map[string]bool{"KubeProxyIPVS": false}, []featuregate.Feature{config.KubeProxyIPVS}},
		{"one that is off", map[string]bool{"KubeProxyNFTablesLocalhostNodePorts": true},
			[]featuregate.Feature{config.KubeProxyNFTablesLocalhostNodePorts}},
		{"all alpha ones", map[string]bool{"AllAlpha": true},
			[]featuregate.Feature{config.KubeProxyNFTablesLocalhostNodePorts}},
		{"all beta ones but one", map[string]bool{"AllBeta": false, "ComponentFlagz": true},
			[]featuregate.Feature{config.ComponentStatusz}},
		{"names in another case", map[string]bool{"kubeproxyipvs": false}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := v1alpha2.Default()
			c.FeatureGates = test.set
			gates, err := config.Gates(c)
			require.NoError(t, err)
			for gate, on := range ours {
				want := on
				for _, d := range test.differs {
					want = want != (d == gate)
				}
				assert.Equal(t, want, gates.Enabled(gate), gate)
			}
			assert.Equal(t, test.set, c.FeatureGates)
		})
	}
}

func TestALockedFeatureGateIsAnErrorOrLeftOut(t *testing.T) {
	c := v1alpha2.Default()
	c.FeatureGates = map[string]bool{"NFTablesProxyMode": false, "AllowServiceExternalIPs": false}
	_, err := config.Gates(c)
	require.ErrorContains(t, err, "NFTablesProxyMode")
	_, err = config.Check(c)
	require.ErrorContains(t, err, "featureGates.NFTablesProxyMode: Invalid value: false: cannot be changed")

	soft := false
	c.ConfigHardFail = &soft
	warnings, err := config.Check(c)
	require.NoError(t, err)
	require.Len(t, warnings, 1)
	assert.Equal(t, map[string]bool{"AllowServiceExternalIPs": false}, c.FeatureGates)
	gates, err := config.Gates(c)
	require.NoError(t, err)
	assert.False(t, gates.Enabled(config.AllowServiceExternalIPs))
}
