package apiserver_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// BenchmarkLists measures how long it takes until all bytes of a list of EndpointSlices have arrived, without decoding
// them.
//
//	go test -run - -bench Lists ./testing/apiserver
func BenchmarkLists(b *testing.B) {
	const slices = 5000
	var objects []metav1.Object
	for i := range slices {
		slice := kube.EndpointSlice(fmt.Sprint("s", i)).Port("http", 80)
		for j := range 10 {
			slice.Endpoint(fmt.Sprintf("10.%d.%d.%d", j, i/250, i%250)).OnNode("n1")
		}
		objects = append(objects, slice.Build())
	}
	s, err := apiserver.New(objects...)
	require.NoError(b, err)
	server := httptest.NewServer(s)
	defer server.Close()
	const path = "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=%21service.kubernetes.io%2Fheadless"
	for _, way := range []struct{ name, query string }{
		{"whole", "&resourceVersion=0"},
		{"streamed", fmt.Sprintf("&watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"+
			"&allowWatchBookmarks=true&timeoutSeconds=%d", 600)},
	} {
		b.Run(way.name, func(b *testing.B) {
			if way.name == "streamed" { // the watch ends with the bookmark
				s.SetFaults(func(context.Context, apiserver.Request) apiserver.Fault {
					return apiserver.Fault{EndAfter: slices + 1}
				})
				defer s.SetFaults(nil)
			}
			b.ReportAllocs()
			for b.Loop() {
				r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, server.URL+path+way.query, http.NoBody)
				require.NoError(b, err)
				r.Header.Set("Accept", "application/vnd.kubernetes.protobuf")
				answer, err := server.Client().Do(r)
				require.NoError(b, err)
				n, err := io.Copy(io.Discard, answer.Body)
				require.NoError(b, err)
				require.NoError(b, answer.Body.Close())
				b.SetBytes(n)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/slices, "us/object")
		})
	}
}
