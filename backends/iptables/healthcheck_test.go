package iptables_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// withHealthCheck is a service whose health is asked for on a node port.
func withHealthCheck(name, clusterIP string, port uint16) *model.Service {
	return fm.Service(name).ClusterIP(clusterIP).Port("http", 80).LoadBalancerIP("203.0.113.1").ExternalLocal().
		HealthCheck(port, 0, 0).Build()
}

const (
	toHealthChecks = `-A INPUT -p tcp -m comment --comment "kube-proxy-lib: health checks" -j KPL-HEALTHCHECK`
	acceptedOfA    = `-A KPL-HEALTHCHECK -p tcp -m tcp --dport 32100 -m comment --comment "default/a" -j ACCEPT`
	acceptedOfB    = `-A KPL-HEALTHCHECK -p tcp -m tcp --dport 32100 -m comment --comment "default/b" -j ACCEPT`
)

func TestTrafficToHealthChecksIsAccepted(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(backendtest.Node(), withHealthCheck("default/a", "10.96.0.1", 32100))
	r.Sync()
	for _, f := range model.Families() { // the node answers on its addresses of both
		assert.Contains(t, r.dump(f), toHealthChecks)
		assert.Contains(t, r.dump(f), acceptedOfA)
	}

	r.Set(withHealthCheck("default/b", "10.96.0.2", 32100)) // by mistake
	r.Delete(model.ServiceName{Namespace: "default", Name: "a"})
	r.Sync()
	assert.Contains(t, r.dump(model.IPv4), acceptedOfB)

	r.Set(withHealthCheck("default/b", "10.96.0.2", 32101))
	r.Sync()
	assert.NotContains(t, r.dump(model.IPv4), "32100")
	assert.Contains(t, r.dump(model.IPv4), "--dport 32101")

	r.Delete(model.ServiceName{Namespace: "default", Name: "b"})
	r.Sync()
	assert.NotContains(t, r.dump(model.IPv4), "HEALTHCHECK")
}

func TestHealthChecksAreOpenOnTheAddressesOfNodePortsAlone(t *testing.T) {
	r := newRig(t, iptables.Options{Common: frontend.Common{NodePortAddresses: nodeaddr.Choice{CIDRs: []netip.Prefix{
		netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.7/32")}}}})
	r.Set(backendtest.Node(), withHealthCheck("default/a", "10.96.0.1", 32100))
	r.Sync()
	dump := r.dump(model.IPv4)
	assert.Contains(t, dump,
		`-A INPUT -d 192.0.2.0/24 -p tcp -m comment --comment "kube-proxy-lib: health checks" -j KPL-HEALTHCHECK`)
	assert.Contains(t, dump,
		`-A INPUT -d 198.51.100.7/32 -p tcp -m comment --comment "kube-proxy-lib: health checks" -j KPL-HEALTHCHECK`)
	assert.NotContains(t, dump, toHealthChecks)
}
