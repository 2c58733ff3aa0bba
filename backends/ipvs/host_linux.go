package ipvs

import (
	"fmt"

	"github.com/vishvananda/netns"

	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
)

// systemHost returns the addresses of the network namespace of the calling thread, for any thread to ask.
func systemHost() (nodeaddr.Host, func() error, error) {
	ns, err := netns.Get()
	if err != nil {
		return nil, nil, fmt.Errorf("network namespace: %w", err)
	}
	return &nodeaddr.System{NetNS: int(ns), ExcludeInterfaces: ServiceLinks()}, ns.Close, nil
}
