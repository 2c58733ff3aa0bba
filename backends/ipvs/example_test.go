package ipvs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/ipvs"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A backend on models of IPVS and nftables, to which the example describes one service. Without the models the backend
// uses the machine's own.
func Example() {
	ctx := context.Background()
	root, err := os.MkdirTemp("", "sysctl")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	for _, name := range []string{"conntrack", "expire_nodest_conn", "expire_quiescent_template"} {
		path := filepath.Join(root, "proc/sys/net/ipv4/vs", name)
		_ = os.MkdirAll(filepath.Dir(path), 0o755)
		_ = os.WriteFile(path, []byte("1\n"), 0o600)
	}
	kernel := ipvs.NewFake()
	backend, err := ipvs.New(ctx, ipvs.Options{Dataplane: kernel, NFTables: nft.NewFake(),
		Common: frontend.Common{Families: []model.Family{model.IPv4}, Host: &nodeaddr.Fake{}, Sysctls: sysctl.Root(root)}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer backend.Close()

	backend.SetNode(fakemodel.Node("n1").IP("192.0.2.10").Build())
	backend.SetService(fakemodel.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build())
	backend.SetEndpoint(fakemodel.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Build())
	backend.SetEndpoint(fakemodel.Endpoint("default/web:http/TCP", "10.244.2.5:8080").Build())
	if err := backend.Sync(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(kernel.Dump())
	// Output:
	// address 10.96.0.10
	// -A -t 10.96.0.10:80 -s rr -b flag-3
	// -a -t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 1
	// -a -t 10.96.0.10:80 -r 10.244.2.5:8080 -m -w 1
}
