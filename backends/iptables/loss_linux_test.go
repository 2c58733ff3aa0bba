package iptables_test

import (
	"fmt"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestNoNewFlowIsLostWhileAServiceIsResized(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) {
		r, loaded := newLoaded(t, v)
		r.Set(neighbours()...)
		r.Sync()
		loaded.Resized()
	})
}

func TestNoNewFlowIsLostWhileTheBackendIsRestarted(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) {
		r, loaded := newLoaded(t, v)
		r.Set(neighbours()...)
		r.Sync()
		loaded.Restarted()
	})
}

// newLoaded makes a rig on the kernel, and describes the service that is to be under load to it.
func newLoaded(t *testing.T, v dataplane.Variant) (*rig, backendtest.Loaded) {
	flows := backendtest.NewFlows(t, testkit.EnterNamespace(t))
	r := newKernelRig(t, v)
	return r, backendtest.NewLoaded(flows, r.Driver)
}

// newKernelRig is a rig on the kernel, in the namespace of the test.
func newKernelRig(t testing.TB, v dataplane.Variant) *rig {
	o := iptables.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}}.Of(v).CheckingEvery(-1)
	return (&rig{t: t, options: o}).start()
}

func TestNoNewFlowIsLostWhileChainsAreDividedAndMerged(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) {
		r, loaded := newLoaded(t, v)
		r.Sync()
		loaded.During(func(round int) {
			for i := range 120 { // more than fit into one chain
				name := model.ServiceName{Namespace: "default", Name: fmt.Sprint("m", i)}
				if round%2 == 0 {
					r.Set(fm.Service(name.String()).DetectsLocalPods().ClusterIP(fmt.Sprint("10.96.1.", i)).
						UDPPort("dns", 80).Build(),
						fm.Endpoint(name.String()+":dns/UDP", "10.1.0.1:8080").Build())
				} else {
					r.Delete(name)
				}
			}
		}, 6)
	})
}

func TestNoNewFlowIsLostWhileGroupsComeAndGo(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) {
		r, loaded := newLoaded(t, v)
		r.Sync()
		loaded.During(func(round int) {
			if round%2 == 0 {
				r.Set(neighbours()...)
			} else {
				for i := range 12 {
					r.Delete(model.ServiceName{Namespace: "default", Name: fmt.Sprint("n", i)})
				}
			}
		}, 10)
	})
}

// neighbours are services with the port and the number of endpoints that the one under test has at first: all together
// are a group.
func neighbours() (values []any) {
	for i := range 12 {
		name := fmt.Sprint("default/n", i)
		values = append(values,
			fm.Service(name).DetectsLocalPods().ClusterIP(fmt.Sprint("10.96.0.", i)).UDPPort("dns", 80).Build(),
			fm.Endpoint(name+":dns/UDP", "10.1.0.1:8080").Build(),
			fm.Endpoint(name+":dns/UDP", "10.1.0.2:8080").Build(),
			fm.Endpoint(name+":dns/UDP", "10.1.0.3:8080").Build())
	}
	return values
}
