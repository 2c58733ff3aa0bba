package nodeaddr_test

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// The addresses that a backend puts into its rules for node ports.
func Example() {
	choice, err := nodeaddr.Parse([]string{"192.0.2.0/24"})
	if err != nil {
		fmt.Println(err)
		return
	}
	host := &nodeaddr.Fake{} // &hostaddr.System{} is this machine
	host.Set(
		nodeaddr.HostAddress{Addr: netip.MustParseAddr("127.0.0.1"), Interface: "lo"},
		nodeaddr.HostAddress{Addr: netip.MustParseAddr("192.0.2.10"), Interface: "eth0"},
	)
	tracker, err := nodeaddr.NewTracker(nodeaddr.Options{Choice: choice, Host: host})
	if err != nil {
		fmt.Println(err)
		return
	}
	// go tracker.Run(ctx) follows the host as its addresses change.
	for _, f := range model.Families() {
		a := tracker.Addresses()
		fmt.Println(f, "all:", a.All.Has(f), "addresses:", a.Of(f))
	}
	// Output:
	// IPv4 all: false addresses: [192.0.2.10]
	// IPv6 all: true addresses: []
}
