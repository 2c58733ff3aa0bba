package health_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
)

// The handlers of a proxy. It goes into kubeproxy.Options.Health, too.
func Example() {
	proxy := health.New(0)
	mux := http.NewServeMux()
	mux.Handle("/healthz", proxy.Healthz())
	mux.Handle("/livez", proxy.Livez())

	proxy.SetNode(&model.Node{Name: "node-1", NotEligible: true}) // a sink does that: sink.Tee(backend, proxy.Sink())
	for _, path := range []string{"/healthz", "/livez"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /healthz 503
	// /livez 200
}
