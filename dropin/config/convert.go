package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
)

// minOfKubeProxy is the minSyncPeriod that kube-proxy writes to a v1alpha1 file if none is set.
const minOfKubeProxy = time.Second

// FromV1alpha1 converts a v1alpha1 configuration to the newest version, and sets all defaults: v1alpha1's for the
// fields that it has, so that the meaning stays the same. The warnings name what the newest version cannot express. The
// argument is not changed, and shares no memory with the result.
//
// A minSyncPeriod of 0, which kubeadm writes, counts as not set in all modes. Any other value applies, including the 1s
// that kube-proxy's --write-config-to writes by default; a warning says so.
func FromV1alpha1(in *v1alpha1.KubeProxyConfiguration) (*v1alpha2.KubeProxyConfiguration, []Warning) {
	old := in.DeepCopy()
	SetDefaultsV1alpha1(old)
	mode := v1alpha2.ProxyMode(old.Mode)
	syncPeriod, minSyncPeriod, masqueradeAll := sharedFields(old, mode)

	var w warnings
	c := &v1alpha2.KubeProxyConfiguration{}
	copySameFields(old, c)
	c.IPVS.MasqueradeBit = ptr.To(*old.IPTables.MasqueradeBit) // modes iptables and ipvs share it in v1alpha1
	c.Linux.Conntrack = v1alpha2.ConntrackConfiguration(old.Conntrack)
	c.Linux.MasqueradeAll = *masqueradeAll
	c.Linux.OOMScoreAdj = old.OOMScoreAdj
	c.Windows.RunAsService = old.WindowsRunAsService
	c.DetectLocal.ClusterCIDRs = splitCIDRs(old.ClusterCIDR)
	c.SyncPeriod = *syncPeriod
	if minSyncPeriod.Duration != 0 {
		c.MinSyncPeriod = minSyncPeriod
	}
	if minSyncPeriod.Duration == minOfKubeProxy {
		w.add(v1alpha1Name("minSyncPeriod", old.Mode), "1s is obeyed, although kube-proxy writes it where nobody has "+
			"set it: leave it out, and the time between two syncs follows from what they cost")
	}
	// An unspecified address means no override. The other effect of "::", serving on IPv6 addresses, is already in the two
	// addresses.
	if ip, err := lenient.Addr(old.BindAddress); err != nil || !ip.IsUnspecified() {
		c.NodeIPOverride = []string{old.BindAddress}
	}
	if old.PortRange != "" {
		w.add("portRange", "%q is dropped: no proxy has used it since mode userspace was removed", old.PortRange)
	}
	w.addUnshared(old, c)
	v1alpha2.SetDefaults(c)
	return c, w
}

// ToV1alpha1 converts a configuration to version v1alpha1, and sets all defaults: the newest version's for the fields
// that it has, so that the meaning stays the same. The warnings name what v1alpha1 cannot express. The argument is not
// changed, and shares no memory with the result.
func ToV1alpha1(in *v1alpha2.KubeProxyConfiguration) (*v1alpha1.KubeProxyConfiguration, []Warning) {
	c := in.DeepCopy()
	v1alpha2.SetDefaults(c)

	var w warnings
	old := &v1alpha1.KubeProxyConfiguration{}
	copySameFields(c, old)
	old.Conntrack = v1alpha1.KubeProxyConntrackConfiguration(c.Linux.Conntrack)
	old.OOMScoreAdj = c.Linux.OOMScoreAdj
	old.WindowsRunAsService = c.Windows.RunAsService
	old.ClusterCIDR = strings.Join(c.DetectLocal.ClusterCIDRs, ",")
	syncPeriod, minSyncPeriod, masqueradeAll := sharedFields(old, c.Mode)
	*syncPeriod, *masqueradeAll = c.SyncPeriod, c.Linux.MasqueradeAll
	if c.MinSyncPeriod != nil {
		if *minSyncPeriod = *c.MinSyncPeriod; minSyncPeriod.Duration == 0 {
			w.add("minSyncPeriod", "0 is dropped: in v1alpha1 it means that it is not set")
		}
	}

	bit, lost, name := c.IPTables.MasqueradeBit, c.IPVS.MasqueradeBit, "ipvs.masqueradeBit"
	if c.Mode == v1alpha2.ProxyModeIPVS {
		bit, lost, name = lost, bit, "iptables.masqueradeBit"
	}
	old.IPTables.MasqueradeBit = bit
	if defaultBit := v1alpha2.Default().IPTables.MasqueradeBit; *lost != *bit && *lost != *defaultBit {
		w.add(name, "%d is dropped: in v1alpha1, modes iptables and ipvs share one bit", *lost)
	}

	for i, text := range c.NodeIPOverride {
		ip, _ := lenient.Addr(text)
		switch {
		case i > 0:
			w.add(elementOf("nodeIPOverride", i), "%q is dropped: v1alpha1 has a single address, bindAddress", text)
		case text == "" || ip.IsUnspecified():
			w.add(elementOf("nodeIPOverride", i), "%q is dropped: as bindAddress in v1alpha1 it means none", text)
		default:
			old.BindAddress = text
		}
	}
	if cidrs := c.DetectLocal.ClusterCIDRs; len(cidrs) > 0 && !slices.Equal(cidrs, splitCIDRs(old.ClusterCIDR)) {
		w.add("detectLocal.clusterCIDRs", "%q is dropped: clusterCIDR in v1alpha1 cannot express it", cidrs)
	}
	if p := c.IPFamilyPolicy; p != "" && p != v1alpha2.IPFamilyPolicyPreferDualStack {
		w.add("ipFamilyPolicy", "%q is dropped: v1alpha1 lacks the field and behaves as PreferDualStack", p)
	}
	if !*c.ConfigHardFail {
		w.add("configHardFail", "false is dropped: v1alpha1 lacks the field and behaves as true")
	}
	SetDefaultsV1alpha1(old)
	return old, w
}

// copySameFields copies fields with the same path in both versions, which mean the same.
func copySameFields(from, to any) {
	setFields(to, fieldsOf(from))
}

// fieldsOf returns a configuration's fields by their names in a file, and setFields sets them. The conversion cannot
// fail for the types of configurations.
func fieldsOf(c any) map[string]any {
	fields, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(c)
	return fields
}

func setFields(c any, fields map[string]any) {
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(fields, c)
}

// splitCIDRs splits clusterCIDR, which is a single string in v1alpha1.
func splitCIDRs(clusterCIDR string) []string {
	if clusterCIDR == "" {
		return nil
	}
	return strings.Split(clusterCIDR, ",")
}

// warnings collects warnings.
type warnings []Warning

func (w *warnings) add(field, format string, args ...any) {
	*w = append(*w, Warning{Field: field, Message: fmt.Sprintf(format, args...)})
}

// sharedFields returns the fields that v1alpha2 has once for all modes, and v1alpha1 once per mode.
func sharedFields(c *v1alpha1.KubeProxyConfiguration,
	mode v1alpha2.ProxyMode) (syncPeriod, minSyncPeriod *metav1.Duration, masqueradeAll *bool) {
	switch mode {
	case v1alpha2.ProxyModeIPVS:
		return &c.IPVS.SyncPeriod, &c.IPVS.MinSyncPeriod, &c.IPTables.MasqueradeAll
	case v1alpha2.ProxyModeNFTables:
		return &c.NFTables.SyncPeriod, &c.NFTables.MinSyncPeriod, &c.NFTables.MasqueradeAll
	}
	return &c.IPTables.SyncPeriod, &c.IPTables.MinSyncPeriod, &c.IPTables.MasqueradeAll
}

// addUnshared warns about these fields in the sections of other modes.
func (w *warnings) addUnshared(old *v1alpha1.KubeProxyConfiguration, c *v1alpha2.KubeProxyConfiguration) {
	const message = "%v is dropped: it is for another mode, and v1alpha2 has one %s, %v, for all modes"
	d := &v1alpha1.KubeProxyConfiguration{}
	SetDefaultsV1alpha1(d)
	byCost := c.MinSyncPeriod == nil
	minSyncPeriod, kubeProxys := ptr.Deref(c.MinSyncPeriod, metav1.Duration{}), metav1.Duration{Duration: minOfKubeProxy}
	for _, f := range []struct {
		name                   string
		value, byDefault, kept metav1.Duration
	}{
		{"iptables.syncPeriod", old.IPTables.SyncPeriod, d.IPTables.SyncPeriod, c.SyncPeriod},
		{"iptables.minSyncPeriod", old.IPTables.MinSyncPeriod, kubeProxys, minSyncPeriod},
		{"nftables.syncPeriod", old.NFTables.SyncPeriod, d.NFTables.SyncPeriod, c.SyncPeriod},
		{"nftables.minSyncPeriod", old.NFTables.MinSyncPeriod, kubeProxys, minSyncPeriod},
		{"ipvs.syncPeriod", old.IPVS.SyncPeriod, d.IPVS.SyncPeriod, c.SyncPeriod},
		{"ipvs.minSyncPeriod", old.IPVS.MinSyncPeriod, d.IPVS.MinSyncPeriod, minSyncPeriod},
	} {
		if f.value.Duration != 0 && f.value != f.kept && f.value != f.byDefault {
			_, field, _ := strings.Cut(f.name, ".")
			kept := f.kept.Duration.String()
			if field == "minSyncPeriod" && byCost {
				kept = "which follows from what a sync costs"
			}
			w.add(f.name, message, f.value.Duration, field, kept)
		}
	}
	if old.IPTables.MasqueradeAll && !c.Linux.MasqueradeAll {
		w.add("iptables.masqueradeAll", message, true, "linux.masqueradeAll", false)
	}
	if old.NFTables.MasqueradeAll && !c.Linux.MasqueradeAll {
		w.add("nftables.masqueradeAll", message, true, "linux.masqueradeAll", false)
	}
}
