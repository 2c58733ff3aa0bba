package watch_test

import (
	"context"
	"fmt"
	"strings"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"sigs.k8s.io/kube-proxy-lib/watch"
)

// printer is a Handler that prints its calls. afterSync is called once everything has been listed, afterChange after
// every update from then on.
type printer struct {
	synced                 bool
	afterSync, afterChange func()
}

func (p *printer) Update(changes ...watch.Change) {
	for _, c := range changes {
		verb := "there is"
		if c.Deleted {
			verb = "gone:"
		}
		fmt.Printf("%s %s %s/%s\n", verb, strings.TrimPrefix(fmt.Sprintf("%T", c.Object), "*v1."),
			c.Object.GetNamespace(), c.Object.GetName())
	}
	if p.synced && p.afterChange != nil {
		p.afterChange()
	}
}

func (p *printer) Synced() {
	p.synced = true
	fmt.Println("that is all there was")
	p.afterSync()
}

func web() *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10"}}
}

// A source runs until its context ends, here as soon as everything has been listed.
func ExampleNewClientset() {
	client := fake.NewClientset(web()) // a program has kubernetes.NewForConfig(config)
	source, err := watch.NewClientset(client, watch.ClientsetOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	err = source.Run(ctx, "node-1", &printer{afterSync: cancel})
	fmt.Println(err)
	// Output:
	// there is Service shop/web
	// that is all there was
	// <nil>
}

// The factory is the program's own, which starts it and shuts it down.
func ExampleNewInformers() {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(web()), 0)
	source, err := watch.NewInformers(factory, watch.InformersOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done()) // after NewInformers
	err = source.Run(ctx, "node-1", &printer{afterSync: cancel})
	fmt.Println(err)
	factory.Shutdown()
	// Output:
	// there is Service shop/web
	// that is all there was
	// <nil>
}

const cluster = `
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {namespace: shop, name: web}
  spec: {clusterIP: 10.96.0.10}
- apiVersion: v1
  kind: Node
  metadata: {name: node-1}
- apiVersion: v1
  kind: Node
  metadata: {name: node-2}
`

// SetFS makes a source that runs read again. What differs is one Update.
func ExampleFiles_SetFS() {
	before := fstest.MapFS{"cluster.yaml": {Data: []byte(cluster)}}
	after := fstest.MapFS{"cluster.yaml": {Data: []byte(strings.ReplaceAll(cluster, "web", "shop"))}}

	source, err := watch.NewFilesFS(before)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	err = source.Run(ctx, "node-1", &printer{
		afterSync:   func() { source.SetFS(after) },
		afterChange: cancel,
	})
	fmt.Println(err)
	// Output:
	// there is Service shop/web
	// there is Node /node-1
	// that is all there was
	// there is Service shop/shop
	// gone: Service shop/web
	// <nil>
}
