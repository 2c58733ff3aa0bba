package kubeproxy_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// applied passes everything on and says when a Sync has ended.
type applied struct {
	sink.Sink
	done chan struct{}
}

func (a *applied) Sync(ctx context.Context) error {
	err := a.Sink.Sync(ctx)
	a.done <- struct{}{}
	return err
}

// BenchmarkOneEndpointChanged measures the whole path, from the event of a source to the end of the Sync, goroutines
// included: one endpoint of a service is replaced by another. The sinks do nothing with their input; the full-state one
// asks what changed.
func BenchmarkOneEndpointChanged(b *testing.B) {
	for name, newSink := range map[string]func() sink.Sink{
		"null": func() sink.Sink { return sink.Tee() },
		"full state": func() sink.Sink {
			var before *sink.Snapshot
			return sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
				for c := range s.ChangesSince(before) {
					for range c.Endpoints() {
					}
				}
				before = s
				return nil
			})
		},
	} {
		for _, services := range []int{100, 1000, 10000} {
			b.Run(fmt.Sprintf("%dx10/%s", services, name), func(b *testing.B) {
				src, out := newManual(), &applied{newSink(), make(chan struct{})}
				ctx, cancel := context.WithCancel(klog.NewContext(b.Context(), logr.Discard()))
				ended := make(chan error)
				go func() {
					ended <- kubeproxy.Run(ctx, kubeproxy.Options{Sink: out, MinInterval: -1, ResyncInterval: -1,
						Feed: &kubeproxy.LocalFeed{Source: src,
							State: localstate.Options{NodeName: "node-1", Families: []model.Family{model.IPv4}}}})
				}()
				<-src.started
				const versions = 2
				slices := make([][versions]*discoveryv1.EndpointSlice, services)
				for i := range slices {
					name := fmt.Sprint("service-", i)
					src.Update(set(service(name, fmt.Sprintf("10.96.%d.%d", i>>8, i&0xff)))...)
					for v := range slices[i] {
						addrs := []string{fmt.Sprintf("10.200.%d.%d", v, i&0xff)}
						for e := range 9 {
							addrs = append(addrs, fmt.Sprintf("10.%d.%d.%d", e, i>>8, i&0xff))
						}
						slices[i][v] = slice(name, addrs...)
					}
					src.Update(set(slices[i][0])...)
				}
				src.Synced()
				<-out.done

				b.ReportAllocs()
				n := 0
				for b.Loop() {
					var changed metav1.Object = slices[n%services][(n/services+1)%versions]
					src.Update(set(changed)...)
					<-out.done
					n++
				}
				b.StopTimer()
				cancel()
				require.NoError(b, <-ended)
			})
		}
	}
}
