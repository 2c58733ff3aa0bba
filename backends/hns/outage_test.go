package hns

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// stop stops HNS after some more calls that change something. It counts the calls that it does not answer.
func (m *machine) stop(after int) (unanswered *int) {
	unanswered = new(int)
	down := func(call string) error {
		*unanswered++
		return fmt.Errorf("%s failed in Win32: the interface is unknown (0x6b5): %w", call, dp.ErrNotRunning)
	}
	m.hns.SetFail(func(call string) error {
		if after--; after >= 0 {
			return nil
		}
		m.hns.SetFailRead(down)
		return down(call)
	})
	if after == 0 {
		m.hns.SetFailRead(down)
	}
	return unanswered
}

// startAgain starts HNS again.
func (m *machine) startAgain() {
	m.hns.SetFail(nil)
	m.hns.SetFailRead(nil)
}

// isOutage checks that a Sync failed for the families, because HNS was not running.
func isOutage(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, dp.ErrNotRunning)
	require.True(t, sink.FailedFamilies(err).Has(model.IPv4), "%v", err)
	require.Empty(t, sink.PortErrors(err), "not the fault of a service port")
}

// many is n services, whose endpoints are on other nodes.
func many(n int) []any {
	values := []any{backendtest.Node()}
	for i := range n {
		values = append(values,
			fm.Service(fmt.Sprint("default/s", i)).ClusterIP(fmt.Sprint("10.96.1.", i)).Port("http", 80).Build(),
			fm.Endpoint(fmt.Sprintf("default/s%d:http/TCP", i), fmt.Sprintf("10.244.3.%d:80", i)).Build())
	}
	return values
}

// S54: whenever HNS stops, the Sync stops at once. Nothing is lost: the next one does the rest, and no more.
func TestASyncStopsWhenHNSStops(t *testing.T) {
	for _, after := range []int{0, 1, 2, 3, 20, 39} {
		t.Run(fmt.Sprint("after ", after, " calls"), func(t *testing.T) {
			m := newMachine(t)
			b := m.start(t)
			put(t, b, backendtest.Node())
			backendtest.Set(t, b, many(20)...)
			unanswered := m.stop(after)
			isOutage(t, b.Sync(t.Context()))
			require.LessOrEqual(t, *unanswered, 2*3, "a call of each family, and a check whether another program made it")
			m.startAgain()
			m.hns.TakeCalls()
			require.NoError(t, b.Sync(t.Context()))
			require.Len(t, m.writes(), 40-after, "an endpoint and a load balancer of each service")

			fresh := newMachine(t)
			put(t, fresh.start(t), many(20)...)
			require.Equal(t, fresh.hns.Dump(), m.hns.Dump())
		})
	}
}

// A load balancer whose change was not answered still serves. To replace it would interrupt its connections.
func TestAfterAnOutageLoadBalancersAreChangedInPlace(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	backendtest.Set(t, b, fm.Endpoint(webPort, "10.244.1.6:8080").Local().Build())
	for range 3 {
		m.hns.SetFail(func(string) error { return dp.ErrNotRunning })
		isOutage(t, b.Sync(t.Context()))
		b.ResyncFailed()
	}
	m.startAgain()
	m.hns.TakeCalls()
	require.NoError(t, b.Sync(t.Context()))
	require.Equal(t, []string{"update load balancer 10.96.0.10:80/TCP"}, m.writes())
}

// The same for a repair.
func TestAfterAnOutageDuringARepairLoadBalancersAreChangedInPlace(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	list, err := m.hns.LoadBalancers(t.Context())
	require.NoError(t, err)
	list[0].Endpoints = list[0].Endpoints[:1]
	require.NoError(t, m.hns.UpdateLoadBalancer(t.Context(), list[0]))
	m.hns.SetFail(func(string) error { return dp.ErrNotRunning })
	_, err = b.families[model.IPv4].check(t.Context(), nil)
	require.ErrorIs(t, err, dp.ErrNotRunning)
	m.startAgain()
	m.hns.TakeCalls()
	b.repair(t)
	require.Equal(t, []string{"update load balancer 10.96.0.10:80/TCP"}, m.writes())
}

// A Sync does not ask for each of many endpoints of a service, either.
func TestASyncStopsInTheMiddleOfAService(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	for i := range 20 {
		backendtest.Set(t, b, fm.Endpoint(webPort, fmt.Sprintf("10.244.3.%d:8080", i)).Build())
	}
	unanswered := 0
	m.hns.SetFail(func(string) error {
		unanswered++
		return dp.ErrNotRunning
	})
	isOutage(t, b.Sync(t.Context()))
	require.LessOrEqual(t, unanswered, 2, "the second time after looking whether somebody else has made it")
}

// HNS may run again before the call that would delete a load balancer without endpoints.
func TestAnOutageDeletesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		machine func(testing.TB) *machine
		options func(*Options)
	}{
		"L2Bridge": {newMachine, func(*Options) {}},
		"overlay":  {newOverlay, overlay},
	} {
		t.Run(name, func(t *testing.T) {
			m := tc.machine(t)
			b := m.start(t, tc.options)
			put(t, b, web()...)
			b.DeleteEndpoint(endpointKey("10.244.1.5:8080"))
			b.DeleteEndpoint(endpointKey("10.244.2.5:8080"))
			backendtest.Set(t, b, fm.Endpoint(webPort, "10.244.2.6:8080").OnNode("node-2").Build())
			unanswered := func(which string) func(string) error {
				return func(call string) error {
					if call == which {
						return dp.ErrNotRunning
					}
					return nil
				}
			}
			m.hns.SetFail(unanswered("create endpoint 10.244.2.6"))
			m.hns.SetFailRead(unanswered("Endpoints"))
			m.hns.TakeCalls()
			isOutage(t, b.Sync(t.Context()))
			require.Equal(t, []string{"create endpoint 10.244.2.6"}, m.writes())
			require.Equal(t, 1, m.hns.NumLoadBalancers())
			m.startAgain()
			require.NoError(t, b.Sync(t.Context()))
			require.Contains(t, m.hns.Dump(), "10.96.0.10:80/TCP -> 8080 of 10.244.2.6")
		})
	}
}

// S54: what HNS did not delete during an outage is deleted by the next Sync, which its runner makes soon.
func TestADeletionThatHNSDidNotAnswerFailsTheSync(t *testing.T) {
	for _, what := range []string{"delete load balancer", "delete endpoint"} {
		t.Run(what, func(t *testing.T) {
			m := newMachine(t)
			before := m.hns.Dump()
			b := m.start(t)
			put(t, b, append(many(20), fm.Service("default/empty").ClusterIP("10.96.0.9").Port("http", 80).Build())...)
			for i := range 20 {
				b.DeleteService(model.ServiceName{Namespace: "default", Name: fmt.Sprint("s", i)})
			}
			m.hns.TakeCalls()
			m.hns.SetFail(func(call string) error {
				if strings.HasPrefix(call, what) {
					return dp.ErrNotRunning
				}
				return nil
			})
			isOutage(t, b.Sync(t.Context()))
			tries := 0
			for _, call := range m.writes() {
				if strings.HasPrefix(call, what) {
					tries++
				}
			}
			require.Equal(t, 1, tries)
			m.startAgain()
			require.NoError(t, b.Sync(t.Context()))
			require.Equal(t, before, m.hns.Dump())
		})
	}
}

// failuresOf returns the counted failures, as "operation family type error": number.
func failuresOf(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	counts := map[string]float64{}
	for _, f := range families {
		operation := strings.TrimPrefix(f.GetName(), "kubeproxy_sync_proxy_rules_winkernel_lb_")
		operation = strings.TrimSuffix(operation, "_failures_total")
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			counts[strings.Join([]string{operation, labels["ip_family"], labels["lb_type"], labels["error"]}, " ")] =
				m.GetCounter().GetValue()
		}
	}
	return counts
}

// wide is a service with an address of each kind.
func wide() []any {
	return []any{backendtest.Node(),
		fm.Service("default/web").ClusterIP("10.96.0.10").ExternalIP("198.51.100.1").LoadBalancerIP("203.0.113.1").
			Port("http", 80).NodePort(30080).Build(),
		fm.Endpoint(webPort, "10.244.1.5:8080").Local().Build()}
}

func TestFailuresAreCountedByKindAndReason(t *testing.T) {
	m := newMachine(t)
	m.hns.AddEndpoint(network, dp.Endpoint{Name: "root"})
	registry := prometheus.NewPedanticRegistry()
	b := m.start(t, func(o *Options) {
		o.Metrics, o.RootEndpoint, o.HealthzPort = registry, "root", 10256
	})
	require.Empty(t, failuresOf(t, registry))
	reasons := map[string]error{
		"10.96.0.10:80/TCP":        fmt.Errorf("an address (0x803b001e): %w", dp.ErrInvalidAddress),
		"198.51.100.1:80/TCP":      fmt.Errorf("0x803b0001: %w, %w", dp.ErrNetworkNotFound, dp.ErrNotFound),
		"203.0.113.1:80/TCP":       fmt.Errorf("it (0x80004001) is %w", dp.ErrNotSupported),
		"IPv4 node port 30080/TCP": fmt.Errorf("the port (0x803b0013) %w", dp.ErrAlreadyExists),
		"203.0.113.1:10256/TCP":    fmt.Errorf("the parameter 4711 is incorrect"),
	}
	failing := ""
	m.hns.SetFail(func(call string) error {
		operation, key, _ := strings.Cut(call, " load balancer ")
		if operation == failing {
			return reasons[key]
		}
		return nil
	})
	// counts checks what was counted of an operation, and forgets it.
	counts := func(operation string, refused ...string) {
		t.Helper()
		want := map[string]float64{}
		for _, labels := range refused {
			want[operation+" IPv4 "+labels] = 1
		}
		require.Equal(t, want, failuresOf(t, registry))
		m := b.families[model.IPv4].metrics
		for _, c := range []*prometheus.CounterVec{m.creations, m.updates, m.deletions} {
			c.Reset()
		}
	}
	all := []string{"clusterip invalid_ip", "externalip network_not_found", "ingressip not_implemented",
		"nodeport port_already_exists", "healthcheck other"}
	failing = "create"
	backendtest.Set(t, b, wide()...)
	failsOnly(t, b.Sync(t.Context()), webPort)
	counts("create", all...)
	failing = ""
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()))
	counts("create")

	failing = "update"
	delete(reasons, "203.0.113.1:80/TCP") // what is not supported is done in another way
	backendtest.Set(t, b, fm.Endpoint(webPort, "10.244.1.6:8080").Local().Build())
	failsOnly(t, b.Sync(t.Context()), webPort)
	counts("update", "clusterip invalid_ip", "nodeport port_already_exists")
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()), "they are replaced")
	counts("update", "clusterip invalid_ip", "nodeport port_already_exists")

	failing = "delete"
	reasons["203.0.113.1:80/TCP"] = dp.ErrNotRunning // the last one, and not until the second try
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	_ = b.Sync(t.Context())
	counts("delete", "clusterip invalid_ip", "ingressip other", "nodeport port_already_exists")

	require.NoError(t, b.Close())
	require.Empty(t, failuresOf(t, registry), "the metrics go with the backend")
}

// The kind of a load balancer that an earlier process left follows from its address and flags.
func TestFailedDeletionsOfLeftoversAreCountedByKind(t *testing.T) {
	m := newMachine(t)
	put(t, m.start(t), wide()...)
	registry := prometheus.NewPedanticRegistry()
	b := m.start(t, func(o *Options) { o.Metrics = registry })
	m.hns.SetFail(func(string) error { return fmt.Errorf("no (0x803b0000)") })
	put(t, b, backendtest.Node())
	require.Equal(t, map[string]float64{"delete IPv4 clusterip other": 1, "delete IPv4 nodeport other": 1,
		"delete IPv4 externalip other": 2}, failuresOf(t, registry))
}

func TestMetricsThatAreTakenAreReported(t *testing.T) {
	m := newMachine(t)
	registry := prometheus.NewRegistry()
	m.start(t, func(o *Options) { o.Metrics = registry })
	_, err := New(t.Context(), Options{Network: network, Dataplane: m.hns, Common: frontend.Common{Metrics: registry}})
	require.ErrorContains(t, err, "hns: metrics: ")
}
