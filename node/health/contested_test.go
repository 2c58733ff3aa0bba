package health

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A Service whose only VIP and port are those of an older one is not served, and fails its health check (S59).
func TestAServiceWhoseVIPBelongsToAnotherFailsItsHealthCheck(t *testing.T) {
	var fails map[model.Family]error
	table, err := frontend.New(frontend.Options{
		Apply: func(_ context.Context, c *frontend.Changes) error { return fails[c.Family()] }})
	require.NoError(t, err)
	l := &listeners{}
	s := NewServices(table, ServicesOptions{Listen: l.listen})
	defer s.Close()
	sync := func() (v4, v6 int) {
		t.Helper()
		_ = s.Sync(t.Context())
		v4, _, _ = l.get(t, "0.0.0.0:32000")
		v6, _, _ = l.get(t, "[::]:32000")
		return v4, v6
	}
	served := func(want int, why string) {
		t.Helper()
		v4, v6 := sync()
		assert.Equal(t, [2]int{want, want}, [2]int{v4, v6}, why)
	}

	older := fm.Service("default/older").ClusterIP("10.96.0.2", "fd96::2").Port("http", 80).
		ExternalIP("192.0.2.1", "2001:db8::1").Created(time.Unix(1, 0)).Build()
	web := func() *model.Service {
		web := external("http", "https")
		web.Created = time.Unix(2, 0)
		web.Ports[0].NodePort, web.Ports[1].NodePort = 0, 0
		web.Ports[1].Routes.IPv4.External, web.Ports[1].Routes.IPv6.External = model.Route{}, model.Route{}
		web.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
		return web
	}
	s.SetService(web())
	served(200, "nobody else lists its VIPs")

	s.DeleteService(web().Name)
	s.SetService(older)
	require.NoError(t, s.Sync(t.Context()))
	s.SetService(web())
	served(503, "both of its VIPs belong to the older one")
	served(503, "nothing changes")
	again := web()
	again.HealthCheck.LocalEndpoints.IPv4++
	s.SetService(again)
	served(503, "it has more endpoints")

	two := web()
	two.LoadBalancerIPs = append(two.LoadBalancerIPs, netip.MustParseAddr("2001:db8::2"))
	s.SetService(two)
	served(200, "one of its VIPs is its own")
	nodePort := web()
	nodePort.Ports[0].NodePort = 30080
	s.SetService(nodePort)
	served(200, "its node port is its own")
	s.SetService(web())
	served(503, "as before")

	fails = map[model.Family]error{model.IPv4: errors.New("not applied"), model.IPv6: errors.New("not applied")}
	s.DeleteService(older.Name)
	served(503, "the rules are those of before")
	delete(fails, model.IPv6)
	v4, v6 := sync()
	assert.Equal(t, [2]int{503, 200}, [2]int{v4, v6}, "IPv6 alone is applied")
	fails = nil
	served(200, "it has its VIPs")
	assert.Empty(t, s.outside.unreached)

	s.SetService(older)
	served(200, "it keeps its VIPs")
	s.DeleteService(web().Name)
	require.NoError(t, s.Sync(t.Context()))
	s.SetService(web())
	served(503, "made again, it comes second")
	s.DeleteService(web().Name)
	require.NoError(t, s.Sync(t.Context()))
	assert.Empty(t, s.outside.unreached, "what is gone is forgotten")
}

// pendingReports is a sink that reports what outside clients do not reach.
type pendingReports struct {
	*sink.Recorder
	report func(port model.PortName, f model.Family, owns bool)
}

func (p *pendingReports) ReportExternal(report func(port model.PortName, f model.Family, owns bool)) {
	p.report = report
}

// Middleware between the backend and the health checks passes no reports on: they come from the backend.
func TestReportsComeFromTheBackendBehindMiddleware(t *testing.T) {
	l, backend := &listeners{}, &pendingReports{Recorder: &sink.Recorder{}}
	s := NewServices(sink.NewForward(backend), ServicesOptions{Listen: l.listen, External: backend})
	defer s.Close()
	web := external("http")
	s.SetService(web)
	for _, f := range model.Families() {
		backend.report(web.PortName(web.Ports[0]), f, false)
	}
	require.NoError(t, s.Sync(t.Context()))
	code, _, _ := l.get(t, "0.0.0.0:32000")
	assert.Equal(t, 503, code)
}
