package v1alpha2_test

import (
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

// A configuration that is made in a program instead of read from a file.
func ExampleSetDefaults() {
	c := &v1alpha2.KubeProxyConfiguration{Mode: v1alpha2.ProxyModeNFTables}
	c.DetectLocal.ClusterCIDRs = []string{"10.244.0.0/16"}
	v1alpha2.SetDefaults(c)
	fmt.Println(c.HealthzBindAddress, *c.ConfigHardFail, c.SyncPeriod.Duration)
	// Output: 0.0.0.0:10256 true 30s
}
