package healthcheck_test

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/health"
	"sigs.k8s.io/kube-proxy-lib/healthcheck"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sysctl"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Everything that a backend needs on a node, around it. (Not run: it would change this machine.)
func Example_allTogether() {
	run := func(ctx context.Context, source watch.Source, newBackend func(*nodeaddr.Tracker) sink.Sink,
		nodePortAddresses []string,
		events healthcheck.EventRecorder, registry prometheus.Registerer, mux *http.ServeMux, nodeName string) error {
		proxy := health.New(0)
		choice, err := nodeaddr.Parse(nodePortAddresses)
		if err != nil {
			return err
		}
		addresses, err := nodeaddr.NewTracker(nodeaddr.Options{Choice: choice})
		if err != nil {
			return err
		}
		go func() { _ = addresses.Run(ctx) }()

		backend := newBackend(addresses) // its SetNode calls addresses.SetNode, for "primary"
		ctx, cancel := context.WithCancel(ctx)
		flows := conntrack.Wrap(ctx, backend, conntrack.Options{Addresses: addresses.Addresses})
		defer func() { cancel(); flows.Wait() }()
		services := healthcheck.NewServices(flows, healthcheck.ServicesOptions{
			Healthy: proxy.Healthy, Addresses: addresses.Addresses, Events: events, NodeName: nodeName,
		})
		defer services.Close()
		registry.MustRegister(flows, proxy)
		mux.Handle("/healthz", proxy.Healthz())
		mux.Handle("/livez", proxy.Livez())

		limits := sysctl.Conntrack{MaxPerCore: 32768, Min: 131072, TCPCloseWaitTimeout: time.Hour}
		if err := limits.Apply(ctx, ""); err != nil {
			klog.FromContext(ctx).Error(err, "Some kernel parameters are not set") // normal in a container
		}
		return kubeproxy.Run(ctx, kubeproxy.Options{
			Feed: &kubeproxy.LocalFeed{Source: source, State: localstate.Options{NodeName: nodeName}},
			Sink: sink.Tee(services, proxy.Sink()), Health: proxy, Metrics: registry,
		})
	}
	_ = run
}
