package config

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

const v1alpha1APIVersion = v1alpha2.GroupName + "/v1alpha1"

// SetDefaultsV1alpha1 sets apiVersion, kind, and all unset fields to the defaults of version v1alpha1, which are also
// the defaults of kube-proxy's flags.
func SetDefaultsV1alpha1(c *v1alpha1.KubeProxyConfiguration) {
	c.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1APIVersion, Kind: v1alpha2.Kind}

	// Defaults that differ from v1alpha2's.
	c.BindAddress = cmp.Or(c.BindAddress, "0.0.0.0")
	c.HealthzBindAddress, c.MetricsBindAddress = v1alpha2.BindAddresses(c.BindAddress, c.HealthzBindAddress,
		c.MetricsBindAddress)
	c.IPTables.LocalhostNodePorts = cmp.Or(c.IPTables.LocalhostNodePorts, ptr.To(true))
	// bindAddressHardFail is false. The minimum periods stay 0, which means not set: see FromV1alpha1.

	// Defaults that are the same.
	d := v1alpha2.Default()
	c.IPTables.MasqueradeBit = cmp.Or(c.IPTables.MasqueradeBit, d.IPTables.MasqueradeBit)
	c.NFTables.MasqueradeBit = cmp.Or(c.NFTables.MasqueradeBit, d.NFTables.MasqueradeBit)
	c.IPTables.SyncPeriod = cmp.Or(c.IPTables.SyncPeriod, d.SyncPeriod)
	c.NFTables.SyncPeriod = cmp.Or(c.NFTables.SyncPeriod, d.SyncPeriod)
	c.IPVS.SyncPeriod = cmp.Or(c.IPVS.SyncPeriod, d.SyncPeriod)
	c.OOMScoreAdj = cmp.Or(c.OOMScoreAdj, d.Linux.OOMScoreAdj)
	c.Conntrack.MaxPerCore = cmp.Or(c.Conntrack.MaxPerCore, d.Linux.Conntrack.MaxPerCore)
	c.Conntrack.Min = cmp.Or(c.Conntrack.Min, d.Linux.Conntrack.Min)
	c.Conntrack.TCPEstablishedTimeout = cmp.Or(c.Conntrack.TCPEstablishedTimeout,
		d.Linux.Conntrack.TCPEstablishedTimeout)
	c.Conntrack.TCPCloseWaitTimeout = cmp.Or(c.Conntrack.TCPCloseWaitTimeout, d.Linux.Conntrack.TCPCloseWaitTimeout)
	c.ConfigSyncPeriod = cmp.Or(c.ConfigSyncPeriod, d.ConfigSyncPeriod)
	c.ClientConnection.ContentType = cmp.Or(c.ClientConnection.ContentType, d.ClientConnection.ContentType)
	c.ClientConnection.QPS = cmp.Or(c.ClientConnection.QPS, d.ClientConnection.QPS)
	c.ClientConnection.Burst = cmp.Or(c.ClientConnection.Burst, d.ClientConnection.Burst)
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}
