package kube_test

import (
	"fmt"
	"log"

	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

func Example() {
	service := kube.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).NodePort(30080).
		ExternalLocal().Build()
	slice := kube.EndpointSlice("default/web").Port("http", 8080).
		Endpoint("10.244.1.5").OnNode("n1").InZone("a").ForZones("a").
		Endpoint("10.244.2.5").OnNode("n2").Terminating().
		Build()
	for _, object := range []any{service.Spec, slice.Endpoints} {
		text, err := yaml.Marshal(object)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", text)
	}
	// Output:
	// clusterIP: 10.96.0.10
	// clusterIPs:
	// - 10.96.0.10
	// externalTrafficPolicy: Local
	// internalTrafficPolicy: Cluster
	// ipFamilies:
	// - IPv4
	// ipFamilyPolicy: SingleStack
	// ports:
	// - name: http
	//   nodePort: 30080
	//   port: 80
	//   protocol: TCP
	//   targetPort: 80
	// sessionAffinity: None
	// type: NodePort
	//
	// - addresses:
	//   - 10.244.1.5
	//   conditions:
	//     ready: true
	//     serving: true
	//     terminating: false
	//   hints:
	//     forZones:
	//     - name: a
	//   nodeName: n1
	//   zone: a
	// - addresses:
	//   - 10.244.2.5
	//   conditions:
	//     ready: false
	//     serving: true
	//     terminating: true
	//   nodeName: n2
}
