package nft_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A Sync that removes what packets in flight may still reach waits for them: once in each family, however many services
// are resized, so that the pause that Run leaves after it stays short.
func TestASyncWaitsForPacketsOnceHoweverManyServicesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nft.Options{})
		defer r.backend.Close()
		r.Set(backendtest.Node())
		const services = 100
		endpoint := func(i, n int) []any {
			port := fmt.Sprintf("default/web-%d:http/TCP", i)
			return []any{fm.Endpoint(port, fmt.Sprintf("10.77.%d.%d:8080", i, n)).Build(),
				fm.Endpoint(port, fmt.Sprintf("[fd00:77::%d:%d]:8080", i, n)).Build()}
		}
		for i := range services {
			s := fm.Service(fmt.Sprint("default/web-", i)).ClusterIP(fmt.Sprint("10.96.0.", 1+i),
				fmt.Sprintf("fd00:96::%d", 1+i)).Port("http", 80).Build()
			routes := model.NewRoutes(model.RoutePolicy{ClusterIP: true, DetectsLocalPods: true})
			s.Ports[0].Routes.IPv4, s.Ports[0].Routes.IPv6 = routes, routes
			r.Set(s)
			for n := range 3 {
				r.Set(endpoint(i, n)...)
			}
		}
		takes := func() time.Duration {
			start := time.Now()
			r.Sync()
			return time.Since(start)
		}
		assert.Zero(t, takes(), "nothing is removed")
		for i := range services {
			r.Delete(endpoint(i, 2)...)
		}
		assert.Equal(t, 2*time.Millisecond, takes())
		for i := range services {
			r.Delete(endpoint(i, 1)...)
			r.Set(endpoint(i, 3)...)
		}
		assert.Zero(t, takes(), "endpoints that are replaced take their slots")
	})
}
