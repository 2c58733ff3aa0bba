package network

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// ServeManyPods adds every address of [ManyPods] to other-node and starts a server for each.
func (n *Network) ServeManyPods(f model.Family) error {
	node, pods := n.namespaces[OtherNode], ManyPods(f)
	err := errors.Join(
		n.Node.addRoute("kpl-other", pods, Nth(PlanOf(f).ToOtherNode, 2), netlink.Route{}),
		node.addRoute("lo", pods, netip.Addr{},
			netlink.Route{Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}))
	if err != nil {
		return err
	}
	_, err = n.servers.serve(node, model.TCP, Wildcard(f, ManyPodsPort), true)
	return err
}
