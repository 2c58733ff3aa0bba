package iptables_test

import (
	"errors"
	"fmt"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestNoNewFlowIsLostWhileAServiceIsResized(t *testing.T) { eachVariant(t, resizeUnderLoad) }

func resizeUnderLoad(t *testing.T, v dataplane.Variant) {
	flows := backendtest.NewFlows(t, testns.Enter(t))
	r := newKernelRig(t, v)
	flows.Describe(&r.model, 3)
	r.set(neighbours()...)
	r.sync()
	flows.NoneIsLostDuring(func(round int) error {
		flows.Resize(&r.model, round)
		_, err := r.model.Flush(r.backend)
		return errors.Join(err, r.backend.Sync(t.Context()))
	}, 36)
}

func TestNoNewFlowIsLostWhileTheBackendIsRestarted(t *testing.T) { eachVariant(t, restartUnderLoad) }

func restartUnderLoad(t *testing.T, v dataplane.Variant) {
	flows := backendtest.NewFlows(t, testns.Enter(t))
	r := newKernelRig(t, v)
	flows.Describe(&r.model, 3)
	r.set(neighbours()...)
	r.sync()
	flows.NoneIsLostDuring(func(round int) error {
		r.restart()
		flows.Replace(&r.model, round) // something was missed in between
		_, err := r.model.Flush(r.backend)
		return errors.Join(err, r.backend.Sync(t.Context()))
	}, 6)
}

// newKernelRig is a rig on the kernel, in the namespace of the test.
func newKernelRig(t testing.TB, v dataplane.Variant) *rig {
	r := &rig{t: t, options: iptables.Options{Variant: v, Families: []model.Family{model.IPv4}, DriftInterval: -1}}
	r.start()
	t.Cleanup(func() { r.backend.Close() })
	return r
}

func TestNoNewFlowIsLostWhileChainsAreDividedAndMerged(t *testing.T) { eachVariant(t, divideUnderLoad) }

func divideUnderLoad(t *testing.T, v dataplane.Variant) {
	flows := backendtest.NewFlows(t, testns.Enter(t))
	r := newKernelRig(t, v)
	flows.Describe(&r.model, 3)
	r.sync()
	flows.NoneIsLostDuring(func(round int) error {
		for i := range 120 { // more than fit into one chain
			name := model.ServiceName{Namespace: "default", Name: fmt.Sprint("m", i)}
			if round%2 == 0 {
				r.set(fm.Service(name.String()).DetectsLocalPods().ClusterIP(fmt.Sprint("10.96.1.", i)).UDPPort("dns", 80).Build(),
					fm.Endpoint(name.String()+":dns/UDP", "10.1.0.1:8080").Build())
			} else {
				r.model.DeleteService(name)
			}
		}
		_, err := r.model.Flush(r.backend)
		return errors.Join(err, r.backend.Sync(t.Context()))
	}, 6)
}

// neighbours are services with the port and the number of endpoints that the one under test has at first: all together are
// a group.
func neighbours() (values []any) {
	for i := range 12 {
		name := fmt.Sprint("default/n", i)
		values = append(values, fm.Service(name).DetectsLocalPods().ClusterIP(fmt.Sprint("10.96.0.", i)).UDPPort("dns", 80).Build(),
			fm.Endpoint(name+":dns/UDP", "10.1.0.1:8080").Build(), fm.Endpoint(name+":dns/UDP", "10.1.0.2:8080").Build(),
			fm.Endpoint(name+":dns/UDP", "10.1.0.3:8080").Build())
	}
	return values
}

func TestNoNewFlowIsLostWhileGroupsComeAndGo(t *testing.T) { eachVariant(t, regroupUnderLoad) }

func regroupUnderLoad(t *testing.T, v dataplane.Variant) {
	flows := backendtest.NewFlows(t, testns.Enter(t))
	r := newKernelRig(t, v)
	flows.Describe(&r.model, 3)
	r.sync()
	flows.NoneIsLostDuring(func(round int) error {
		if round%2 == 0 {
			r.set(neighbours()...)
		} else {
			for i := range 12 {
				r.model.DeleteService(model.ServiceName{Namespace: "default", Name: fmt.Sprint("n", i)})
			}
		}
		_, err := r.model.Flush(r.backend)
		return errors.Join(err, r.backend.Sync(t.Context()))
	}, 10)
}
