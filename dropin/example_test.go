package dropin_test

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-proxy-lib/dropin"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

// A binary with several components in one process runs the proxy as one of them, until ctx ends.
func Example() {
	component := func(ctx context.Context, nodeName string, client kubernetes.Interface) error {
		c := v1alpha2.Default()
		c.HostnameOverride = nodeName
		c.Mode = v1alpha2.ProxyModeNFTables
		c.DetectLocalMode = v1alpha2.LocalModeNodeCIDR
		if err := dropin.Run(ctx, dropin.Config{Configuration: c, Client: client}); err != nil {
			return fmt.Errorf("kube-proxy: %w", err)
		}
		return nil
	}
	_ = component
}

// Check reports the errors of a configuration that do not depend on the machine.
func ExampleConfig_Check() {
	c := dropin.Config{Page: true, NoMetrics: true}
	_, err := c.Check()
	fmt.Println(strings.ReplaceAll(err.Error(), ": ", ":\n"))
	// Output:
	// --page:
	// there are no metrics to serve the page with:
	// give it an address with --page-bind-address=127.0.0.1:10250
}
