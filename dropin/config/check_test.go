package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

func TestCheckFailsTheStartWithAllProblems(t *testing.T) {
	c := v1alpha2.Default()
	c.Mode = "userspace"
	c.Linux.OOMScoreAdj = ptr.To[int32](2000)
	before := c.DeepCopy()

	warnings, err := config.Check(c)
	require.EqualError(t, err, `invalid configuration: mode: Unsupported value: "userspace": supported values: `+
		supportedModes()+"\n"+
		"linux.oomScoreAdj: Invalid value: 2000: must be between -1000 and 1000")
	assert.Empty(t, warnings)
	assert.Equal(t, before, c)

	var one *field.Error
	require.ErrorAs(t, err, &one)
	assert.Equal(t, "mode", one.Field)
}

func TestCheckOfAValidConfigurationChangesNothing(t *testing.T) {
	for _, hardFail := range []bool{true, false} {
		c := v1alpha2.Default()
		c.ConfigHardFail = &hardFail
		before := c.DeepCopy()
		warnings, err := config.Check(c)
		require.NoError(t, err)
		assert.Empty(t, warnings)
		assert.Equal(t, before, c)
	}
}

func TestWithoutConfigHardFailTheDefaultsAreUsed(t *testing.T) {
	for name, tc := range map[string]struct {
		file     string
		want     func(c *v1alpha2.KubeProxyConfiguration) // what is not a default
		warnings []string
	}{
		"for a field": {
			"mode: userspace\nhostnameOverride: a\n",
			func(c *v1alpha2.KubeProxyConfiguration) { c.HostnameOverride = "a" },
			[]string{`mode: Unsupported value: "userspace": supported values: ` + supportedModes() +
				"; using the default instead"},
		},
		"for a field in a section": {
			"linux: {masqueradeAll: true, conntrack: {min: -1, maxPerCore: 0}}\n",
			func(c *v1alpha2.KubeProxyConfiguration) {
				c.Linux.MasqueradeAll = true
				c.Linux.Conntrack.MaxPerCore = ptr.To[int32](0)
			},
			[]string{"linux.conntrack.min: Invalid value: -1: must be at least 0; using the default instead"},
		},
		"and elements of lists are left out": {
			"nodePortAddresses: [x, primary, z, 192.0.2.0/24, primary]\n",
			func(c *v1alpha2.KubeProxyConfiguration) {
				c.NodePortAddresses = []string{"primary", "192.0.2.0/24"}
			},
			[]string{
				`nodePortAddresses[0]: Invalid value: "x": must be a CIDR, "primary", "localhost" or "all"; ignoring it`,
				`nodePortAddresses[2]: Invalid value: "z": must be a CIDR, "primary", "localhost" or "all"; ignoring it`,
				`nodePortAddresses[4]: Duplicate value: "primary"; ignoring it`,
			},
		},
		"for both of two that do not fit together": {
			"syncPeriod: 500ms\nminSyncPeriod: 40s\n",
			func(*v1alpha2.KubeProxyConfiguration) {},
			[]string{
				`minSyncPeriod: Invalid value: "40s": must not exceed syncPeriod, 500ms; using the default instead`,
				`syncPeriod: Invalid value: "500ms": must not be less than minSyncPeriod, 40s; using the default instead`,
			},
		},
		"also where a default brings another rule into force": {
			"detectLocalMode: BridgeInterface\ndetectLocal: {clusterCIDRs: [x]}\n",
			func(*v1alpha2.KubeProxyConfiguration) {},
			[]string{
				`detectLocalMode: Invalid value: "BridgeInterface": needs detectLocal.bridgeInterface, which is empty; ` +
					`using the default instead`,
				`detectLocal.clusterCIDRs[0]: Invalid value: "x": must be a CIDR, such as 10.100.0.0/16 or ` +
					`fde4:8dba:82e1::/48; ignoring it`,
			},
		},
		"for the minimum period, when only the period's default is too short for it": {
			"syncPeriod: -1s\nminSyncPeriod: 1h\n",
			func(*v1alpha2.KubeProxyConfiguration) {},
			[]string{
				`syncPeriod: Invalid value: "-1s": must be greater than 0; using the default instead`,
				`minSyncPeriod: Invalid value: "1h0m0s": must not exceed syncPeriod, 30s; using the default instead`,
				`syncPeriod: Invalid value: "30s": must not be less than minSyncPeriod, 1h0m0s; using the default instead`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, warnings, err := config.Load([]byte(v1alpha2Header + "configHardFail: false\n" + tc.file))
			require.NoError(t, err)
			want := v1alpha2.Default()
			*want.ConfigHardFail = false
			tc.want(want)
			assert.Equal(t, want, c)
			assert.Equal(t, tc.warnings, texts(warnings))
		})
	}
}

func TestMalformedFilesEndTheStartWithoutConfigHardFail(t *testing.T) {
	_, _, err := config.Load([]byte(v1alpha2Header + "configHardFail: false\nsyncPeriod: often\n"))
	require.EqualError(t, err, `malformed file: syncPeriod: "often": time: invalid duration "often"`)
}

func TestUnknownFieldsAreWarningsEvenWithConfigHardFail(t *testing.T) {
	c, warnings, err := config.Load([]byte(v1alpha2Header + "configHardFail: true\nnotYet: 1\nsyncPeriod: 10s\n"))
	require.NoError(t, err)
	assert.Equal(t, []config.Warning{{Field: "notYet", Message: "unknown field; it is ignored"}}, warnings)
	assert.Equal(t, 10*time.Second, c.SyncPeriod.Duration)
}
