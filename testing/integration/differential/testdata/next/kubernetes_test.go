package differential

import (
	"context"
	"reflect"
	"sync"

	v1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/config"
	"k8s.io/kubernetes/pkg/proxy/nodemanager"
)

// What Kubernetes 1.38 has elsewhere than 1.37.

type nodeManager = nodemanager.NodeManager

const nodeIPsField = "rawNodeIPs"

// nodeManagerType is the type behind the interface, which is not exported. With a context that has ended the
// constructor returns a nil pointer of that type, and an error; its informer goes on, with a server that nobody has.
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
