package apiserver_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// A client follows the Services of a server, which a test changes.
func Example() {
	s, err := apiserver.New(kube.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build())
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(s)
	defer server.Close()
	defer server.CloseClientConnections()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		log.Fatal(err)
	}

	events, err := client.CoreV1().Services("").Watch(context.Background(), metav1.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer events.Stop()
	show := func() {
		e := <-events.ResultChan()
		fmt.Println(e.Type, e.Object.(*corev1.Service).Name, e.Object.(*corev1.Service).Spec.ClusterIP)
	}
	show()
	web := kube.Service("default/web").ClusterIP("10.96.0.11").Port("http", 80).Build()
	if err := s.Set(web); err != nil {
		log.Fatal(err)
	}
	show()
	if err := s.Delete(web); err != nil {
		log.Fatal(err)
	}
	show()
	// Output:
	// ADDED web 10.96.0.10
	// MODIFIED web 10.96.0.11
	// DELETED web 10.96.0.11
}
