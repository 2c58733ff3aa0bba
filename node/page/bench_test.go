package page

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// filled returns a page that shows so many services with ten endpoints each.
func filled(b *testing.B, services int) *rig {
	r := newRig(b, nil, Options{})
	for i := range services {
		s := service(fmt.Sprintf("service-%05d", i), i, false)
		r.sink.SetService(s)
		for n := range 10 {
			r.sink.SetEndpoint(endpoint(s, fmt.Sprintf("10.%d.%d.%d:8080", 100+n, i>>8, i&255), cluster))
		}
	}
	r.apply()
	return r
}

// BenchmarkSync is what the page adds to a Sync that replaces an endpoint.
func BenchmarkSync(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			r := filled(b, n)
			s := service("service-00050", 50, false)
			targets := []*model.Endpoint{endpoint(s, "10.90.0.1:8080", cluster), endpoint(s, "10.90.0.2:8080", cluster)}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				r.sink.DeleteEndpoint(targets[i%2].Key())
				r.sink.SetEndpoint(targets[(i+1)%2])
				_ = r.sink.Sync(context.Background())
				i++
			}
		})
	}
}

// BenchmarkUpdate is the message to one browser about such a Sync.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			r := filled(b, n)
			before := r.view()
			r.sink.SetEndpoint(endpoint(service("service-00050", 50, false), "10.90.0.1:8080", cluster))
			r.apply()
			now := r.view()
			b.ReportAllocs()
			for b.Loop() {
				_ = r.message(&before, &now)
			}
		})
	}
}

// BenchmarkRequest is what a browser asks for, at 10,000 services; bytes is the size of the answer. The first paint is
// "everything" with the first hundred services.
func BenchmarkRequest(b *testing.B) {
	r := filled(b, 10_000)
	for _, request := range []struct{ name, path string }{
		{"everything", "/ " + strings.Join(loaded(r.request("/").Body.String()), " ")},
		{"list", "/api/services"},
		{"last-of-list", "/api/services?offset=9900"},
		{"search", "/api/services?q=service-0777"},
		{"search-address", "/api/services?q=10.105.3.7"},
		{"problems", "/api/services?problems=true"},
		{"service", "/api/service?namespace=shop&name=service-05000"},
		{"flow-from-a-pod", "/api/flow?q=pod+10.109.39.15+-%3E+10.96.19.136:80"},
		{"flow", "/api/flow?q=outside+203.0.113.7+-%3E+10.96.19.136:80"},
	} {
		b.Run(request.name, func(b *testing.B) {
			bytes := 0
			for b.Loop() {
				bytes = 0
				for path := range strings.FieldsSeq(request.path) {
					w := r.request(path)
					if w.Code != 200 {
						b.Fatal(w.Body)
					}
					bytes += w.Body.Len()
				}
			}
			b.ReportMetric(float64(bytes), "bytes")
		})
	}
}

// loaded returns the paths of what a browser loads for the page.
func loaded(html string) (paths []string) {
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"#]+[.](?:css|js))"`).FindAllStringSubmatch(html, -1) {
		paths = append(paths, "/"+m[1])
	}
	return paths
}
