package v1alpha2

import (
	"maps"
	"slices"
)

// DeepCopy returns a copy that shares nothing with c.
func (c *KubeProxyConfiguration) DeepCopy() *KubeProxyConfiguration {
	if c == nil {
		return nil
	}
	out := *c
	out.FeatureGates = maps.Clone(c.FeatureGates)
	c.Logging.DeepCopyInto(&out.Logging)
	out.NodeIPOverride = slices.Clone(c.NodeIPOverride)
	out.BindAddressHardFail = clone(c.BindAddressHardFail)
	out.ConfigHardFail = clone(c.ConfigHardFail)
	out.IPTables.MasqueradeBit = clone(c.IPTables.MasqueradeBit)
	out.IPTables.LocalhostNodePorts = clone(c.IPTables.LocalhostNodePorts)
	out.IPVS.MasqueradeBit = clone(c.IPVS.MasqueradeBit)
	out.IPVS.ExcludeCIDRs = slices.Clone(c.IPVS.ExcludeCIDRs)
	out.NFTables.MasqueradeBit = clone(c.NFTables.MasqueradeBit)
	out.Linux.OOMScoreAdj = clone(c.Linux.OOMScoreAdj)
	out.Linux.Conntrack.MaxPerCore = clone(c.Linux.Conntrack.MaxPerCore)
	out.Linux.Conntrack.Min = clone(c.Linux.Conntrack.Min)
	out.Linux.Conntrack.TCPEstablishedTimeout = clone(c.Linux.Conntrack.TCPEstablishedTimeout)
	out.Linux.Conntrack.TCPCloseWaitTimeout = clone(c.Linux.Conntrack.TCPCloseWaitTimeout)
	out.DetectLocal.ClusterCIDRs = slices.Clone(c.DetectLocal.ClusterCIDRs)
	out.NodePortAddresses = slices.Clone(c.NodePortAddresses)
	out.MinSyncPeriod = clone(c.MinSyncPeriod)
	return &out
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
