package differential

import (
	"context"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	v1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/features"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/config"
	"k8s.io/kubernetes/pkg/proxy/nodemanager"
)

// Names that Kubernetes 1.38 has in other packages than 1.37.

type nodeManager = nodemanager.NodeManager

const nodeIPsField = "rawNodeIPs"

// nodeManagerType is the type behind the interface, which is not exported. With a context that has ended the
// constructor returns a nil pointer of that type, and an error; its informer continues, with a server that does
// not exist.
var nodeManagerType = sync.OnceValue(func() reflect.Type {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://127.0.0.1:1"})
	m, _ := nodemanager.New(ctx, client, nodeName, &proxyconfig.KubeProxyConfiguration{})
	return reflect.TypeOf(m).Elem()
})

func newNodeManager() nodeManager { return reflect.New(nodeManagerType()).Interface().(nodeManager) }

func watchTopology(nodes v1informers.NodeInformer, to config.NodeTopologyHandler) {
	config.NewNodeTopologyConfig(context.Background(), nodes, 0, to)
}

// allowOldAddresses makes validation accept addresses that are not in their canonical form, as before Kubernetes 1.36.
// Kubernetes 1.38 has locked the gate, so all gates are those of 1.37, but for the one of pkg/proxy whose default has
// changed since.
func allowOldAddresses() error {
	gates := utilfeature.DefaultMutableFeatureGate.(featuregate.MutableVersionedFeatureGate)
	if err := gates.SetEmulationVersion(version.MajorMinor(1, 37)); err != nil {
		return err
	}
	return gates.SetFromMap(map[string]bool{
		string(features.StrictIPCIDRValidation):              false,
		string(features.KubeProxyNFTablesLocalhostNodePorts): true,
	})
}
