package nft_test

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// BenchmarkFromEvents is the whole way of a cluster of 50,000 services with one endpoint each, from the events of a
// source to the end of the first Sync, goroutines included. In "kernel" the kernel has everything then; "no-kernel" has
// a dataplane that does nothing, so its figures are the library's own.
//
//	go test -run - -bench FromEvents -benchtime 10x ./backends/nft
//
// Its figures, for each service:
//
//   - us: from the first event until everything is applied; apply-us is the part of the dataplane. cpu-us is processor
//     time, that of the kernel and of the garbage collector included.
//   - B-allocated: what was allocated in that time. The objects of the events exist before.
//   - B-kept: how much bigger the heap has become, garbage collected, with the objects of the events alive as before.
//     B-kept-alone: how much bigger than before there were objects, once they are gone.
func BenchmarkFromEvents(b *testing.B) {
	const services = 50000
	b.Run("kernel", func(b *testing.B) {
		testkit.EnterNamespace(b)
		fromEvents(b, services, func() dp.Interface {
			kernel, err := dp.NewNetlink()
			require.NoError(b, err)
			return kernel
		})
	})
	b.Run("no-kernel", func(b *testing.B) {
		fromEvents(b, services, func() dp.Interface { return noKernel{dp.NewFake()} })
	})
}

// noKernel accepts everything, and does nothing.
type noKernel struct{ dp.Interface }

func (noKernel) Apply(context.Context, *dp.Transaction) error { return nil }

// timedApply adds up how long a dataplane takes.
type timedApply struct {
	dp.Interface
	took time.Duration
}

func (t *timedApply) Apply(ctx context.Context, tx *dp.Transaction) error {
	defer func(began time.Time) { t.took += time.Since(began) }(time.Now())
	return t.Interface.Apply(ctx, tx)
}

func fromEvents(b *testing.B, services int, newDataplane func() dp.Interface) {
	var figures [5]float64
	cpu := backendtest.NewStopwatch(b)
	for b.Loop() {
		b.StopTimer()
		kernel := &timedApply{Interface: newDataplane()}
		backend := newBackend(b, nft.Options{Dataplane: kernel})
		var heaps [4]runtime.MemStats
		collectGarbage(&heaps[0])
		source := &listed{objects: clusterObjects(services), start: make(chan struct{})}
		collectGarbage(&heaps[1])

		first := &firstSync{Sink: backend, done: make(chan error, 1)}
		ctx, cancel := context.WithCancel(klog.NewContext(b.Context(), logr.Discard()))
		ended := make(chan error)
		go func() {
			ended <- kubeproxy.Run(ctx, kubeproxy.Options{Sink: first, ResyncInterval: -1, Feed: &kubeproxy.LocalFeed{
				Source: source, State: localstate.Options{NodeName: "node-1", Families: []model.Family{model.IPv4}}}})
		}()
		var took time.Duration
		cpu.Alone(func() {
			began := time.Now()
			close(source.start)
			require.NoError(b, <-first.done)
			took = time.Since(began)
		})
		collectGarbage(&heaps[2])
		runtime.KeepAlive(source)
		source.objects = nil
		collectGarbage(&heaps[3])

		for i, v := range []float64{float64(took.Nanoseconds()) / 1000, float64(kernel.took.Nanoseconds()) / 1000,
			float64(heaps[2].TotalAlloc - heaps[1].TotalAlloc), float64(heaps[2].HeapAlloc) - float64(heaps[1].HeapAlloc),
			float64(heaps[3].HeapAlloc) - float64(heaps[0].HeapAlloc)} {
			figures[i] += v
		}
		cancel()
		require.NoError(b, <-ended)
		require.NoError(b, backend.CleanUp(b.Context()))
		require.NoError(b, backend.Close())
		require.NoError(b, kernel.Close())
		settle()
		b.StartTimer()
	}
	total := float64(services) * float64(cpu.N)
	for i, unit := range []string{"us", "apply-us", "B-allocated", "B-kept", "B-kept-alone"} {
		b.ReportMetric(figures[i]/total, unit+"/service")
	}
	b.ReportMetric(float64(cpu.Total.Microseconds())/total, "cpu-us/service")
	b.ReportMetric(0, "ns/op") // us/service says it
}

func collectGarbage(m *runtime.MemStats) {
	runtime.GC()
	runtime.GC() // empties the pools
	runtime.ReadMemStats(m)
}

// listed is a watch.Source of objects that exist at its start, which it delivers one by one.
type listed struct {
	objects []metav1.Object
	start   chan struct{}
}

func (l *listed) Run(ctx context.Context, _ string, h watch.Handler) error {
	<-l.start
	for _, o := range l.objects {
		h.Update(watch.Change{Object: o})
	}
	h.Synced()
	<-ctx.Done()
	return nil
}

// firstSync says when the first Sync has ended.
type firstSync struct {
	sink.Sink
	done chan error
}

func (f *firstSync) Sync(ctx context.Context) error {
	err := f.Sink.Sync(ctx)
	select {
	case f.done <- err:
	default:
	}
	return err
}

// clusterObjects returns EndpointSlices with one endpoint each, then their Services.
func clusterObjects(services int) []metav1.Object {
	objects := make([]metav1.Object, 2*services)
	for i := range services {
		name := fmt.Sprintf("echo-%06d", i)
		ip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()
		pod := netip.AddrFrom4([4]byte{10, 128, byte(i >> 8), byte(i)}).String()
		objects[i] = &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: name + "-kvhw7",
				Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP),
				Port: ptr.To[int32](80)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{pod}, NodeName: ptr.To("worker"),
				Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true),
					Terminating: ptr.To(false)},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "test", Name: name + "-757d4cb97f"}}},
		}
		objects[services+i] = &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: name},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Selector: map[string]string{"name": name},
				Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}},
		}
	}
	return objects
}
