package differential

import (
	"context"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	v1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/config"
)

// Names that the next Kubernetes moved. testdata/next has its version of this file; "../use next" swaps it in.

type nodeManager = *proxy.NodeManager

// nodeIPsField is the manager's field with the addresses of the Node object.
const nodeIPsField = "nodeIPs"

func newNodeManager() nodeManager { return &proxy.NodeManager{} }

func watchTopology(nodes v1informers.NodeInformer, to config.NodeTopologyHandler) {
	config.NewNodeTopologyConfig(context.Background(), nodes, 0).RegisterEventHandler(to)
}

// allowOldAddresses makes validation accept addresses that are not in their canonical form, as before Kubernetes 1.36.
func allowOldAddresses() error {
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{
		string(features.StrictIPCIDRValidation): false,
	})
}
