package judge_test

import (
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/judge"
)

// flags are the arguments with which a program is started on a node, as its Host's Start does.
func flags(n judge.Node, c judge.Configuration) []string {
	args := []string{"--hostname-override", judge.NodeName}
	if c.Local == judge.NodeCIDR {
		args = append(args, "--pod-cidr", n.PodCIDRs()[0].String())
	}
	if c.MasqueradeAll {
		args = append(args, "--masquerade-all")
	}
	return args
}

func Example() {
	node := judge.Node{Families: []model.Family{model.IPv4}}
	fmt.Println(flags(node, judge.Configuration{Local: judge.NodeCIDR, MasqueradeAll: true}))

	sizes := []judge.Size{{Services: 1000, Endpoints: 10}, {Services: 100_000, Endpoints: 1}}
	for _, size := range sizes {
		fmt.Println(size, size.Validate() == nil)
	}
	// Output:
	// [--hostname-override node --pod-cidr 10.180.1.0/24 --masquerade-all]
	// 1000x10 true
	// 100000x1 false
}
