package config

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

// Feature gates of kube-proxy that have an effect in a program on this library.
const (
	// AllowServiceExternalIPs serves spec.externalIPs (S6). Default true.
	AllowServiceExternalIPs featuregate.Feature = "AllowServiceExternalIPs"
	// ComponentFlagz and ComponentStatusz serve /flagz and /statusz. Default true.
	ComponentFlagz   featuregate.Feature = "ComponentFlagz"
	ComponentStatusz featuregate.Feature = "ComponentStatusz"
	// KubeProxyIPVS makes mode ipvs valid (KEP-5495). Default true.
	KubeProxyIPVS featuregate.Feature = "KubeProxyIPVS"
	// KubeProxyNFTablesLocalhostNodePorts serves node ports on loopback addresses in mode nftables (KEP-6032). Default
	// false.
	KubeProxyNFTablesLocalhostNodePorts featuregate.Feature = "KubeProxyNFTablesLocalhostNodePorts"
	// NativeHistograms sends native histograms to clients that accept them. Default true.
	NativeHistograms featuregate.Feature = "NativeHistograms"
)

// kubeProxyGates returns the feature gates of kube-proxy 1.37, except those of logging. Some disable what cannot be
// disabled here.
func kubeProxyGates() map[featuregate.Feature]featuregate.FeatureSpec {
	locked := featuregate.FeatureSpec{Default: true, PreRelease: featuregate.GA, LockToDefault: true}
	beta := featuregate.FeatureSpec{Default: true, PreRelease: featuregate.Beta}
	return map[featuregate.Feature]featuregate.FeatureSpec{
		AllowServiceExternalIPs:             {Default: true, PreRelease: featuregate.GA},
		ComponentFlagz:                      beta,
		ComponentStatusz:                    beta,
		KubeProxyIPVS:                       {Default: true, PreRelease: featuregate.Deprecated},
		KubeProxyNFTablesLocalhostNodePorts: {Default: false, PreRelease: featuregate.Alpha},
		NativeHistograms:                    beta,
		"MultiCIDRServiceAllocator":         locked,
		"NFTablesNetlink":                   beta,
		"NFTablesProxyMode":                 locked,
		"PreferSameTrafficDistribution":     locked,
		"WinDSR":                            locked,
		"WinOverlay":                        locked,
	}
}

// Gates returns the feature gates of kube-proxy 1.37 with the configuration's values. They include AllAlpha, AllBeta
// and logging's gates, so they can be passed to ValidateAndApply of k8s.io/component-base/logs/api/v1. Unknown gates
// are ignored: only the program knows whether they are its own. Setting a locked gate is an error.
func Gates(c *v1alpha2.KubeProxyConfiguration) (featuregate.MutableFeatureGate, error) {
	gates, err := defaultGates()
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for gate := range gates.GetAll() {
		if on, ok := c.FeatureGates[string(gate)]; ok {
			known[string(gate)] = on
		}
	}
	if err := gates.SetFromMap(known); err != nil {
		return nil, fmt.Errorf("featureGates: %w", err)
	}
	return gates, nil
}

// defaultGates returns all known gates, with their defaults.
func defaultGates() (featuregate.MutableFeatureGate, error) {
	gates := featuregate.NewFeatureGate()
	if err := logsapi.AddFeatureGates(gates); err != nil {
		return nil, err
	}
	return gates, gates.Add(kubeProxyGates())
}

// featureGates reports gates that are set but locked, and returns the others.
func (v *validator) featureGates(c *v1alpha2.KubeProxyConfiguration) (featuregate.FeatureGate, error) {
	gates, err := defaultGates()
	if err != nil {
		return nil, err
	}
	valid := c.DeepCopy()
	specs := gates.GetAll()
	for _, name := range slices.Sorted(maps.Keys(c.FeatureGates)) {
		spec, on := specs[featuregate.Feature(name)], c.FeatureGates[name]
		if spec.LockToDefault && on != spec.Default {
			v.invalid("featureGates."+name, on, "cannot be changed: it is always %v", spec.Default)
			delete(valid.FeatureGates, name)
		}
	}
	return Gates(valid)
}
