package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// backend is a backend whose behaviour and reports the test prescribes.
type backend struct {
	sink.TeeSink
	err       error
	rules     string
	described error // of DescribeService
	repairs   []sink.Repair
	problems  map[model.ServiceName][]string // to be reported by the next Sync
	report    func(model.ServiceName, bool)
}

func (b *backend) Sync(context.Context) error {
	for name, list := range b.problems {
		b.report(name, len(list) > 0)
	}
	return b.err
}

func (b *backend) ReportProblems(report func(model.ServiceName, bool)) { b.report = report }

func (b *backend) Problems(name model.ServiceName) []string { return b.problems[name] }

func (b *backend) DescribeService(_ context.Context, name model.ServiceName) (string, error) {
	if b.described != nil {
		return "", b.described
	}
	if b.rules == "" {
		return "", fmt.Errorf("no rules of %v", name)
	}
	return b.rules, nil
}

func (b *backend) Repairs() ([]sink.Repair, int) { return b.repairs, 7 }

// rig is a page with a sink that feeds it.
type rig struct {
	*Page
	t    testing.TB
	sink sink.Sink
}

func newRig(t testing.TB, next sink.Sink, opts Options) *rig {
	p := New(opts)
	r := &rig{Page: p, t: t, sink: p.Sink(next)}
	r.sink.(sink.NodeSetter).SetNode(&model.Node{Name: "n1", Zone: "a",
		IPs:       []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		LocalPods: model.LocalPods{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}})
	return r
}

func (r *rig) apply() { require.NoError(r.t, r.sink.Sync(context.Background())) }

// service returns one with port 80 at 10.96.x.y, and a node port with the policy Local, if asked for.
func service(name string, n int, local bool) *model.Service {
	s := &model.Service{
		Name: model.ServiceName{Namespace: "shop", Name: name}, Type: model.ServiceTypeClusterIP,
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})},
		Ports:      []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
	}
	policy := model.RoutePolicy{ClusterIP: true, DetectsLocalPods: true}
	if local {
		s.Type, s.Ports[0].NodePort = model.ServiceTypeNodePort, uint16(30000+n)
		s.ExternalTrafficPolicy = model.TrafficPolicyLocal
		policy.External, policy.ExternalAddresses = model.TrafficPolicyLocal, true
	}
	s.Ports[0].Routes.IPv4 = model.NewRoutes(policy)
	return s
}

func endpoint(s *model.Service, target string, sets model.EndpointSets) *model.Endpoint {
	return &model.Endpoint{Port: s.PortName(s.Ports[0]), Target: netip.MustParseAddrPort(target), Sets: sets,
		Ready: true, Serving: true,
		Local: sets.Has(model.LocalSet), Node: map[bool]string{true: "n1", false: "n2"}[sets.Has(model.LocalSet)]}
}

// request asks for a path, as a browser that is at http://localhost does.
func (r *rig) request(path string, header ...string) *httptest.ResponseRecorder {
	q := httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, q)
	return w
}

// get decodes the answer to a request for JSON.
func get[T any](r *rig, path string, parameters ...string) *T {
	r.t.Helper()
	values := url.Values{}
	for i := 0; i < len(parameters); i += 2 {
		values.Set(parameters[i], parameters[i+1])
	}
	w := r.request(path + "?" + values.Encode())
	require.Equal(r.t, http.StatusOK, w.Code, w.Body)
	require.Equal(r.t, "application/json", w.Header().Get("Content-Type"))
	v := new(T)
	require.NoError(r.t, json.Unmarshal(w.Body.Bytes(), v))
	return v
}
