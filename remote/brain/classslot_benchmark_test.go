package brain

import (
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// BenchmarkChangeWhileANodeNamesZones is how long a change takes to reach a node, with 50,000 endpoints, while another
// node names zones that are new.
func BenchmarkChangeWhileANodeNamesZones(b *testing.B) {
	for _, zones := range []int{0, 16} {
		b.Run(fmt.Sprint(zones), func(b *testing.B) { benchmarkZones(b, zones) })
	}
}

func benchmarkZones(b *testing.B, zones int) {
	c := newCluster(baseObjects()...)
	for service := range 50 {
		name := fmt.Sprint("default/s", service)
		slice := kube.EndpointSlice(name).Port("http", 8080)
		for i := range 1000 {
			slice.Endpoint(fmt.Sprintf("10.%d.%d.%d", service, i/250, i%250)).OnNode(fmt.Sprint("n", i%1000))
		}
		c.set(kube.Service(name).ClusterIP(fmt.Sprint("10.96.0.", service+1)).Port("http", 80).Build(), slice.Build())
	}
	server := serve(b, Options{Source: c, limits: limits{minInterval: -1}}, socket(b))
	other := rawStream(b, server.target, &remotev1.Hello{Node: "n2"})
	batch := receiveBatch(b, other)
	sendAck(b, other, batch[len(batch)-1].Sync.Revision)
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		c.set(naming(numbered(fmt.Sprint(i, "-"), zones)...))
		conns := make([]*grpc.ClientConn, zones)
		for zone := range zones {
			conn, err := grpc.NewClient(server.target, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				b.Fatal(err)
			}
			stream, err := remotev1.NewBrainClient(conn).Watch(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if err := stream.Send(&remotev1.Request{Hello: inZone("n1", fmt.Sprint(i, "-", zone))}); err != nil {
				b.Fatal(err)
			}
			conns[zone] = conn
		}
		b.StartTimer()
		c.set(web("changing", fmt.Sprintf("10.200.%d.%d", i/250, i%250))...)
		batch := receiveBatch(b, other)
		b.StopTimer()
		for _, conn := range conns {
			_ = conn.Close()
		}
		sendAck(b, other, batch[len(batch)-1].Sync.Revision)
		b.StartTimer()
	}
}
