package config_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
)

// Installers write the whole configuration, with null, "" or 0 for fields that are not set, or leave a section empty.
func TestNullIsTheDefault(t *testing.T) {
	defaults, _, err := config.Load([]byte(v1alpha1Header))
	require.NoError(t, err)
	empty, err := yaml.Marshal(&v1alpha1.KubeProxyConfiguration{})
	require.NoError(t, err)
	require.Contains(t, string(empty), "oomScoreAdj: null")
	fields := map[string]any{}
	require.NoError(t, yaml.Unmarshal(empty, &fields))
	sections := map[string]any{}
	for name, value := range fields {
		if _, ok := value.(map[string]any); ok || value == "" || value == nil {
			sections[name] = nil
		}
	}
	require.Greater(t, len(sections), 10)
	nulls, err := yaml.Marshal(sections)
	require.NoError(t, err)
	for _, text := range []string{string(empty), string(nulls)} {
		got, warnings, err := config.Load([]byte(v1alpha1Header + text))
		require.NoError(t, err, text)
		assert.Empty(t, warnings)
		assert.Equal(t, defaults, got, text)
	}
}

// kube-proxy does not start with these either.
func TestADurationIsNotNull(t *testing.T) {
	for field, text := range map[string]string{
		"iptables.minSyncPeriod": v1alpha1Header + "iptables: {minSyncPeriod: null}\n",
		"configSyncPeriod":       v1alpha1Header + "configSyncPeriod: null\n",
		"syncPeriod":             v1alpha2Header + "syncPeriod: null\n",
	} {
		_, _, err := config.Load([]byte(text))
		assert.ErrorContains(t, err, field+": null: ")
	}
	c, _, err := config.Load([]byte(v1alpha2Header + "minSyncPeriod: null\n"))
	require.NoError(t, err)
	assert.Nil(t, c.MinSyncPeriod, "which is to follow from what a sync costs")
}
