package userspace_test

import (
	"context"
	"fmt"
	"io"
	"net"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A service on a port of 127.0.0.1, described by the example. The connection is a real one.
func Example() {
	ctx := context.Background()
	pod, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pod.Close()
	go func() {
		if c, err := pod.Accept(); err == nil {
			_, _ = io.WriteString(c, "hello from the pod")
			_ = c.Close()
		}
	}()

	backend, err := userspace.New(ctx, userspace.Options{Addresses: userspace.Localhost{},
		Common: frontend.Common{Families: []model.Family{model.IPv4}, Host: &nodeaddr.Fake{}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer backend.Close()
	backend.SetService(fakemodel.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build())
	backend.SetEndpoint(fakemodel.Endpoint("default/web:http/TCP", pod.Addr().String()).Build())
	if err := backend.Sync(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for _, l := range backend.Listeners() {
		c, err := net.Dial("tcp", l.Addr.String())
		if err != nil {
			fmt.Println(err)
			return
		}
		answer, err := io.ReadAll(c)
		fmt.Println(l.Port, string(answer), err)
		_ = c.Close()
	}
	// Output: default/web:http/TCP hello from the pod <nil>
}
