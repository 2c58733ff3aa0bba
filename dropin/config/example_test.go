package config_test

import (
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

// All errors are reported at once, with the field names of the file.
func ExampleLoad_errors() {
	_, _, err := config.Load([]byte(`
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: eth0
conntrack: {min: -1}
`))
	fmt.Println(err)
	// Output:
	// invalid configuration: conntrack.min: Invalid value: -1: must be at least 0
	// bindAddress: Invalid value: "eth0": must be an IP address
}

// With configHardFail false a program starts with the defaults in place of what is wrong.
func ExampleCheck() {
	c := v1alpha2.Default()
	*c.ConfigHardFail = false
	*c.Linux.OOMScoreAdj = -9999
	c.NodePortAddresses = []string{"192.0.2.0/24", "eth0"}
	warnings, err := config.Check(c)
	for _, w := range warnings {
		fmt.Println(w)
	}
	fmt.Println(*c.Linux.OOMScoreAdj, c.NodePortAddresses, err)
	// Output:
	// linux.oomScoreAdj: Invalid value: -9999: must be between -1000 and 1000; using the default instead
	// nodePortAddresses[1]: Invalid value: "eth0": must be a CIDR, "primary", "localhost" or "all"; ignoring it
	// -999 [192.0.2.0/24] <nil>
}
