package sysctl_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
)

// Parameters that cannot be set are reported, and do not stop the others.
func Example() {
	dir, err := os.MkdirTemp("", "sysctl") // sysctl.Root("") is the machine
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	netfilter := filepath.Join(dir, "proc/sys/net/netfilter")
	_ = os.MkdirAll(netfilter, 0o755)
	_ = os.WriteFile(filepath.Join(netfilter, "nf_conntrack_tcp_be_liberal"), []byte("0\n"), 0o644)

	root := sysctl.Root(dir)
	limits := sysctl.Conntrack{TCPBeLiberal: true, MaxPerCore: 32768, CPUs: 4}
	if err := limits.Apply(context.Background(), root); err != nil {
		fmt.Println(strings.NewReplacer(dir, "", ": open", ":\n  open").Replace(err.Error()))
	}
	fmt.Println(root.Get("net/netfilter/nf_conntrack_tcp_be_liberal"))
	// Output:
	// sysctl net/netfilter/nf_conntrack_max has no value and cannot be set to 131072:
	//   open /proc/sys/net/netfilter/nf_conntrack_max: no such file or directory
	// sysctl sys/module/nf_conntrack/parameters/hashsize has no value and cannot be set to 32768:
	//   open /sys/module/nf_conntrack/parameters/hashsize: no such file or directory
	// 1 <nil>
}
