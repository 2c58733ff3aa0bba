package kubeproxy_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// These tests imitate programs that move to this library with a dataplane and conventions of their own.

// felix is a dataplane with its own connection tracking, like Calico's: it ends the established connections whose
// endpoint it no longer knows.
type felix struct{ established map[netip.AddrPort]bool }

func (f *felix) sync(_ context.Context, s *sink.Snapshot) error {
	known := map[netip.AddrPort]bool{}
	for entry := range s.Services() {
		for _, e := range entry.Endpoints {
			known[e.Target] = true
			if e.Sets.Has(model.ClusterSet) { // somebody connects
				f.established[e.Target] = true
			}
		}
	}
	maps.DeleteFunc(f.established, func(target netip.AddrPort, _ bool) bool { return !known[target] })
	return nil
}

// apply does the same on package frontend, from the changes that it gets.
func (f *felix) apply(_ context.Context, c *frontend.Changes) error {
	for p := range c.Ports() {
		for _, set := range []model.EndpointSets{model.ClusterSet, frontend.Draining} {
			for _, e := range p.EndpointChanges(set) {
				if e.Before != nil && p.Sets(e.Before.Target)&(model.ClusterSet|frontend.Draining) == 0 {
					delete(f.established, e.Before.Target)
				}
				if e.After != nil && set == model.ClusterSet {
					f.established[e.After.Target] = true
				}
			}
		}
	}
	return nil
}

func TestADataplaneThatTracksConnectionsKeepsThoseOfAnUnreadyPod(t *testing.T) {
	kept := func(opts localstate.Options, onFrontend bool) map[netip.AddrPort]bool {
		f := &felix{established: map[netip.AddrPort]bool{}}
		var backend sink.Sink = sink.NewFullState(f.sync)
		if onFrontend {
			table, err := frontend.New(frontend.Options{Families: []model.Family{model.IPv4}, Apply: f.apply,
				AllEndpoints: opts.AllEndpoints})
			require.NoError(t, err)
			backend = table
		}
		synctest.Test(t, func(t *testing.T) {
			src := newManual()
			stop := start(t, kubeproxy.Options{Feed: &kubeproxy.LocalFeed{Source: src, State: opts},
				Sink: backend, MinInterval: -1})
			pods := slice("web", "10.1.0.1", "10.1.0.2", "10.1.0.3")
			src.Update(set(service("web", "10.96.0.1"), pods)...)
			src.Synced()
			synctest.Wait()
			assert.Len(t, f.established, 3)

			pods = pods.DeepCopy()
			pods.Endpoints[1].Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(false)}
			pods.Endpoints = pods.Endpoints[:2] // and the third pod is gone
			src.Update(set(pods)...)
			synctest.Wait()
			require.NoError(t, stop())
		})
		return f.established
	}
	first, second := netip.MustParseAddrPort("10.1.0.1:8080"), netip.MustParseAddrPort("10.1.0.2:8080")
	for _, onFrontend := range []bool{false, true} {
		assert.Equal(t, map[netip.AddrPort]bool{first: true, second: true},
			kept(localstate.Options{AllEndpoints: true}, onFrontend))
		assert.Equal(t, map[netip.AddrPort]bool{first: true},
			kept(localstate.Options{DrainingEndpoints: true}, onFrontend),
			"those that get no traffic are only handed over on request")
	}
}

func TestACallbackIsCalledWhenASyncIsAskedFor(t *testing.T) {
	for name, wrap := range map[string]func(sink.Sink) sink.Sink{
		"alone":         func(s sink.Sink) sink.Sink { return s },
		"in middleware": func(s sink.Sink) sink.Sink { return sink.Tee(sink.Filter(s, sink.Keep{}), &sink.Recorder{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src, requests := newManual(), make(chan struct{}, 1)
				var called []uint64
				backend := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
					called = append(called, s.Revision())
					assert.Equal(t, s.Revision() == 1, s.FullResync(), "a request is not one for a resync")
					return nil
				})
				stop := start(t, kubeproxy.Options{Feed: local(src), Sink: wrap(backend), MinInterval: -1,
					ResyncInterval: -1, SyncRequests: requests})
				src.Synced()
				synctest.Wait()
				assert.Len(t, called, 1)
				requests <- struct{}{} // something else that the backend depends on has changed
				time.Sleep(time.Hour)
				synctest.Wait()
				assert.Len(t, called, 2, "although nothing has changed in the cluster")
				time.Sleep(time.Hour)
				synctest.Wait()
				assert.Len(t, called, 2)
				require.NoError(t, stop())
			})
		})
	}
}

// failing is a sink that passes no Sync on while it fails.
type failing struct {
	*sink.Forward
	err atomic.Pointer[error]
}

func (f *failing) Sync(ctx context.Context) error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return f.Forward.Sync(ctx)
}

func TestASyncThatWasAskedForSurvivesAnErrorInFrontOfTheSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, requests := newManual(), make(chan struct{}, 1)
		var called atomic.Int64
		full := sink.NewFullState(func(context.Context, *sink.Snapshot) error {
			called.Add(1)
			return nil
		})
		notNow := errors.New("not now")
		before, beside := &failing{Forward: sink.NewForward(full)}, &failing{Forward: sink.NewForward(nil)}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: sink.Tee(before, beside), MinInterval: -1,
			ResyncInterval: -1, SyncRequests: requests})
		src.Synced()
		synctest.Wait()
		assert.EqualValues(t, 1, called.Load())
		before.err.Store(&notNow)
		requests <- struct{}{}
		time.Sleep(time.Hour)
		assert.EqualValues(t, 1, called.Load())
		before.err.Store(nil)
		time.Sleep(time.Hour)
		assert.EqualValues(t, 2, called.Load(), "at the retry")

		port := model.PortName{Service: model.ServiceName{Namespace: "default", Name: "a"}, Port: "http"}
		var refused error = &sink.PortError{Port: port, Family: model.IPv4, Err: errors.New("refused")}
		beside.err.Store(&refused)
		requests <- struct{}{}
		time.Sleep(time.Hour)
		assert.EqualValues(t, 3, called.Load(), "once: the retries of a service port are not what was asked for")
		require.NoError(t, stop())
	})
}

// A program may have informers of Services and EndpointSlices, and know its node by other means.
func TestAProgramWithTwoInformersAndNoNode(t *testing.T) {
	pods := slice("web", "10.1.0.1", "10.1.0.2")
	for i, zone := range []string{"a", "b"} {
		pods.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
	client := fake.NewClientset(service("web", "10.96.0.1"), pods)
	factory := informers.NewSharedInformerFactory(client, 0)
	defer factory.Shutdown()
	source, err := watch.NewInformers(nil, watch.InformersOptions{ServiceInformer: factory.Core().V1().Services(),
		EndpointSliceInformer: factory.Discovery().V1().EndpointSlices()})
	require.NoError(t, err)
	var lines transcript
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), funcr.New(func(_, args string) { lines.add(args) },
		funcr.Options{})))
	defer cancel()
	factory.Start(ctx.Done())

	ip := netip.MustParseAddr("192.0.2.1")
	feed := &kubeproxy.LocalFeed{Source: source,
		State: localstate.Options{NodeName: "node-1", NodeIPs: []netip.Addr{ip}, Zone: "b"}}
	var used []string
	var node *model.Node
	require.NoError(t, kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed,
		Sink: sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
			node = s.Node()
			for entry := range s.Services() {
				for e := range entry.SetEndpoints("http", model.TCP, model.IPv4, model.ClusterSet) {
					used = append(used, e.Target.String())
				}
			}
			cancel()
			return nil
		})}))
	assert.Equal(t, []string{"10.1.0.2:8080"}, used, "the one of its zone")
	require.NotNil(t, node)
	assert.Equal(t, "b", node.Zone)
	assert.Equal(t, ip, node.IP(model.IPv4))
	for _, line := range lines.take() {
		assert.NotContains(t, line, "There is no Node", "nobody looked for one")
	}
	for _, action := range client.Actions() {
		assert.Contains(t, []string{"services", "endpointslices"}, action.GetResource().Resource)
	}
}

// With direct server return, traffic goes to pods of the node whatever the Service's policies: such a dataplane needs
// the local set of every service.
func TestADataplaneWithDirectServerReturnHasTheLocalSet(t *testing.T) {
	pods := slice("web", "10.1.0.1", "10.1.0.2", "10.1.0.3")
	pods.Endpoints[0].NodeName = ptr.To("node-2")
	pods.Endpoints[1].Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true),
		Terminating: ptr.To(true)}
	pods.Endpoints[2].Conditions = pods.Endpoints[1].Conditions
	pods.Endpoints[2].NodeName = ptr.To("node-2")
	returns := map[string][]string{} // targets, by who asks
	synctest.Test(t, func(t *testing.T) {
		src := newManual()
		full := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
			for entry := range s.Services() {
				routes := entry.Service.Ports[0].Routes.IPv4
				assert.Equal(t, model.ClusterSet, routes.Sets(), "it claims no policy")
				for e := range entry.SetEndpoints("http", model.TCP, model.IPv4, model.LocalSet) {
					returns["snapshot"] = append(returns["snapshot"], e.Target.String())
				}
			}
			return nil
		})
		table, err := frontend.New(frontend.Options{Families: []model.Family{model.IPv4},
			Apply: func(_ context.Context, c *frontend.Changes) error {
				for p := range c.Ports() {
					for _, e := range p.EndpointChanges(model.LocalSet) {
						returns["frontend"] = append(returns["frontend"], e.After.Target.String())
					}
				}
				return nil
			}})
		require.NoError(t, err)
		stop := start(t, kubeproxy.Options{Sink: sink.Tee(full, table), Feed: &kubeproxy.LocalFeed{Source: src,
			State: localstate.Options{NodeName: "node-1", ExtraSets: model.LocalSet}}})
		src.Update(set(service("web", "10.96.0.1"), pods)...)
		src.Synced()
		synctest.Wait()
		require.NoError(t, stop())
	})
	last := []string{"10.1.0.2:8080"} // the last resort of this node
	assert.Equal(t, map[string][]string{"snapshot": last, "frontend": last}, returns)
}

// natMap is a map like Calico's, with one list of backends for each service port, the local ones first, where a single
// readiness flag decides which are in it. Sets say more: local traffic uses list[:local], other traffic list[cluster:].
type natMap struct {
	list           []string
	local, cluster int
}

func (m *natMap) sync(_ context.Context, s *sink.Snapshot) error {
	*m = natMap{}
	var localOnly, both, clusterOnly []string
	for entry := range s.Services() {
		for _, e := range entry.Endpoints {
			switch target := e.Target.Addr().String(); e.Sets {
			case model.LocalSet:
				localOnly = append(localOnly, target)
			case model.ClusterSet | model.LocalSet:
				both = append(both, target)
			case model.ClusterSet:
				clusterOnly = append(clusterOnly, target)
			}
		}
	}
	m.list = slices.Concat(localOnly, both, clusterOnly)
	m.local, m.cluster = len(localOnly)+len(both), len(localOnly)
	return nil
}

// An endpoint may be in the local set alone: because hints exclude it, or because it is the last one of the node and is
// terminating. Readiness does not show that: the first is ready, the second is not.
func TestADataplaneWithOneListHasBothSets(t *testing.T) {
	hinted := slice("web", "10.1.0.1", "10.1.0.2", "10.1.0.3")
	hinted.Endpoints[2].NodeName = ptr.To("node-2")
	for i, zone := range []string{"b", "a", "a"} {
		hinted.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
	last := slice("web", "10.1.0.1", "10.1.0.3")
	last.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true),
		Terminating: ptr.To(true)}
	last.Endpoints[1].NodeName = ptr.To("node-2")
	web := service("web", "10.96.0.1")
	web.Spec.Type, web.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
	web.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	for _, tc := range []struct {
		slice *discoveryv1.EndpointSlice
		want  natMap
	}{
		{hinted, natMap{list: []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"}, local: 2, cluster: 1}},
		{last, natMap{list: []string{"10.1.0.1", "10.1.0.3"}, local: 1, cluster: 1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var m natMap
			src := newManual()
			stop := start(t, kubeproxy.Options{Sink: sink.NewFullState(m.sync), Feed: &kubeproxy.LocalFeed{Source: src,
				State: localstate.Options{NodeName: "node-1", Zone: "a"}}})
			src.Update(set(web, tc.slice)...)
			src.Synced()
			synctest.Wait()
			require.NoError(t, stop())
			assert.Equal(t, tc.want, m)
		})
	}
}

// kubeRouter edits a Service as a program like kube-router would: its own annotation overrides the policies, addresses
// outside a range are dropped, and it serves the Services that name no proxy or this one.
func kubeRouter(s *corev1.Service) bool {
	if s.Annotations["kube-router.io/service.local"] == "true" {
		s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	}
	allowed := netip.MustParsePrefix("198.51.100.0/24")
	s.Spec.ExternalIPs = slices.DeleteFunc(s.Spec.ExternalIPs, func(ip string) bool {
		addr, err := netip.ParseAddr(ip)
		return err != nil || !allowed.Contains(addr)
	})
	name, labelled := s.Labels["service.kubernetes.io/service-proxy-name"]
	return !labelled || name == "kube-router"
}

func TestAProgramDecidesWhatItTakesServicesFor(t *testing.T) {
	local := service("local", "10.96.0.1")
	local.Annotations = map[string]string{"kube-router.io/service.local": "true"}
	external := service("external", "10.96.0.2")
	external.Spec.ExternalIPs = []string{"203.0.113.1", "198.51.100.1"}
	mine, others := service("mine", "10.96.0.3"), service("others", "10.96.0.4")
	mine.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "kube-router"}
	others.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "cilium"}
	objects := []metav1.Object{local, external, mine, others}
	var before []metav1.Object
	for _, o := range objects {
		before = append(before, o.(*corev1.Service).DeepCopy())
	}

	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		feed := &kubeproxy.LocalFeed{Source: src, Cluster: localstate.ClusterOptions{
			ServiceProxyName: localstate.AllServiceProxies, AdmitService: kubeRouter}}
		stop := start(t, kubeproxy.Options{Sink: rec, MinInterval: -1, Feed: feed})
		src.Update(set(objects...)...)
		src.Synced()
		synctest.Wait()
		got := rec.Services()
		name := func(name string) model.ServiceName { return model.ServiceName{Namespace: "default", Name: name} }
		assert.ElementsMatch(t, []model.ServiceName{name("local"), name("external"), name("mine")},
			slices.Collect(maps.Keys(got)))
		assert.Equal(t, model.LocalSet, got[name("local")].Ports[0].Routes.IPv4.ClusterIP.Endpoints)
		assert.Equal(t, []netip.Addr{netip.MustParseAddr("198.51.100.1")}, got[name("external")].ExternalIPs)
		assert.Equal(t, before, objects, "objects of the source are not written to")

		taken := mine.DeepCopy()
		taken.Labels["service.kubernetes.io/service-proxy-name"] = "cilium"
		src.Update(set(taken)...)
		synctest.Wait()
		assert.NotContains(t, rec.Services(), name("mine"), "it is another proxy's now")
		explanation, _ := feed.Explain(name("mine"))
		assert.Contains(t, explanation.Skipped, "AdmitService")
		require.NoError(t, stop())
		assert.Empty(t, rec.Violations())
	})
}
