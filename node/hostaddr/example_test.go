package hostaddr_test

import (
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// The addresses of this machine on which node ports are served, without those of a bridge.
func Example() {
	tracker, err := nodeaddr.NewTracker(nodeaddr.Options{
		Host: &hostaddr.System{ExcludeInterfaces: []string{"docker0"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(tracker.Addresses().All.Has(model.IPv4))
	// Output:
	// true
}
