package program_test

import (
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// flags are the arguments with which a program is started on a node, as its Host's Start does.
func flags(n program.Node, c program.Configuration) []string {
	args := []string{"--hostname-override", program.NodeName}
	if c.Local == program.NodeCIDR {
		args = append(args, "--pod-cidr", n.PodCIDRs()[0].String())
	}
	if c.MasqueradeAll {
		args = append(args, "--masquerade-all")
	}
	return args
}

func Example() {
	node := program.Node{Families: []model.Family{model.IPv4}}
	fmt.Println(flags(node, program.Configuration{Local: program.NodeCIDR, MasqueradeAll: true}))

	sizes := []program.Size{{Services: 1000, Endpoints: 10}, {Services: 100_000, Endpoints: 1}}
	for _, size := range sizes {
		fmt.Println(size, size.Validate() == nil)
	}
	// Output:
	// [--hostname-override node --pod-cidr 10.180.1.0/24 --masquerade-all]
	// 1000x10 true
	// 100000x1 false
}
