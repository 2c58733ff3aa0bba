package iptables_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sysctl"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// rig is a backend on fakes, with a model that is handed to it.
type rig struct {
	t       testing.TB
	fakes   map[model.Family]*dataplane.Fake
	options iptables.Options
	backend *iptables.Backend
	model   fm.Model
}

// newRig makes a rig that does not look for drift, unless the options say how often it should.
func newRig(t testing.TB, o iptables.Options) *rig {
	r := &rig{t: t, options: o, fakes: map[model.Family]*dataplane.Fake{}}
	for _, f := range model.Families() {
		r.fakes[f] = dataplane.NewFake(f)
		r.options.Dataplanes = append(r.options.Dataplanes, r.fakes[f])
	}
	if o.DriftInterval == 0 {
		r.options.DriftInterval = -1
	}
	if o.Sysctls == "" {
		r.options.Sysctls = sysctl.Root(t.TempDir())
	}
	r.start()
	t.Cleanup(func() { r.backend.Close() })
	return r
}

func (r *rig) start() {
	backend, err := iptables.New(r.t.Context(), r.options)
	require.NoError(r.t, err)
	r.backend = backend
}

// restart is a new process: a new backend that is told everything, on the tables as they are.
func (r *rig) restart() {
	require.NoError(r.t, r.backend.Close())
	r.model.Forget()
	r.start()
}

// set describes model values.
func (r *rig) set(values ...any) {
	r.t.Helper()
	backendtest.Set(r.t, &r.model, values...)
}

func (r *rig) trySync() error {
	_, err := r.model.Flush(r.backend)
	require.NoError(r.t, err)
	for _, fake := range r.fakes {
		fake.ResetBatches()
	}
	return r.backend.Sync(r.t.Context())
}

func (r *rig) sync() {
	r.t.Helper()
	require.NoError(r.t, r.trySync())
}

// batches returns what the last Sync did in one family, as iptables-restore reads it.
func (r *rig) batches(f model.Family) string {
	var b strings.Builder
	for _, batch := range r.fakes[f].Batches() {
		b.WriteString(batch.String())
	}
	return b.String()
}

func (r *rig) dump(f model.Family) string { return r.fakes[f].Dump() }

var node = backendtest.Node()

// everyFeature is a cluster in which every kind of rule is needed.
func everyFeature() []any {
	return []any{
		node,
		fm.Service("default/web").DetectsLocalPods().ClusterIP("10.96.0.10", "fd00:96::10").Port("http", 80).Build(),
		fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Local().Build(),
		fm.Endpoint("default/web:http/TCP", "10.244.2.5:8080").Build(),
		fm.Endpoint("default/web:http/TCP", "[fd00:244:1::5]:8080").Local().Build(),

		fm.Service("default/dns").DetectsLocalPods().ClusterIP("10.96.0.53").UDPPort("dns", 53).InternalLocal().Build(),
		fm.Endpoint("default/dns:dns/UDP", "10.244.1.53:53").Local().Build(),

		fm.Service("default/gone").DetectsLocalPods().ClusterIP("10.96.0.11").Port("http", 80).NoEndpoints().Build(),
		fm.Service("default/elsewhere").DetectsLocalPods().ClusterIP("10.96.0.12").Port("http", 80).InternalLocal().Build(),

		fm.Service("shop/front").DetectsLocalPods().ClusterIP("10.96.1.1").Port("https", 443).NodePort(30443).
			ExternalIP("198.51.100.1").LoadBalancerIP("203.0.113.1").SourceRange("203.0.113.0/25", "198.51.100.0/24").Build(),
		fm.Endpoint("shop/front:https/TCP", "10.244.2.7:8443").Build(),
		fm.Endpoint("shop/front:https/TCP", "10.244.3.7:8443").Build(),

		fm.Service("shop/local").DetectsLocalPods().ClusterIP("10.96.1.2").Port("http", 80).NodePort(30080).
			LoadBalancerIP("203.0.113.2").ExternalLocal().Build(),
		fm.Endpoint("shop/local:http/TCP", "10.244.2.8:80").Build(),

		fm.Service("shop/sticky").DetectsLocalPods().ClusterIP("10.96.1.3", "fd00:96::3").Port("http", 80).NodePort(30081).
			ExternalLocal().Affinity(3 * time.Hour).Build(),
		fm.Endpoint("shop/sticky:http/TCP", "10.244.1.9:80").Local().Build(),
		fm.Endpoint("shop/sticky:http/TCP", "10.244.2.9:80").Build(),
		fm.Endpoint("shop/sticky:http/TCP", "[fd00:244:2::9]:80").Build(),

		fm.Service("voip/sip").DetectsLocalPods().ClusterIP("10.96.2.1").SCTPPort("sip", 5060).Build(),
		fm.Endpoint("voip/sip:sip/SCTP", "10.244.2.20:5060").Build(),
	}
}
