package command_test

import (
	"context"
	"fmt"
	"os"

	"sigs.k8s.io/kube-proxy-lib/dropin/command"
)

// A binary that passes kube-proxy's arguments on, and has its own logging and other components in the process.
func Example() {
	component := func(ctx context.Context, args []string) error {
		c, err := command.Parse(args, os.Stdout)
		if err != nil {
			return err
		}
		c.Config.OwnProcess, c.ApplyLogging = false, nil // the process and its logging are yours
		return c.Run(ctx)
	}
	_ = component
}

// The flags alone become a configuration.
func ExampleParse() {
	c, err := command.Parse([]string{"--hostname-override=Node-1", "--healthz-port=0"}, os.Stdout)
	if err != nil {
		fmt.Println(err)
		return
	}
	proxy := c.Config // for dropin.Run
	fmt.Println(proxy.Configuration.HostnameOverride, proxy.NoHealthz, proxy.OwnProcess)
	// Output: node-1 true true
}
