package health_test

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// A backend with all that it needs on a node. (Not run: it would change this machine.)
func Example_allTogether() {
	run := func(ctx context.Context, source watch.Source, newBackend func(*nodeaddr.Tracker) sink.Sink,
		nodePortAddresses []string,
		events health.EventRecorder, registry prometheus.Registerer, mux *http.ServeMux, nodeName string) error {
		proxy := health.New(0)
		choice, err := nodeaddr.Parse(nodePortAddresses)
		if err != nil {
			return err
		}
		requests := make(chan struct{}, 1)
		requestSync := func() {
			select {
			case requests <- struct{}{}:
			default: // there is one already
			}
		}
		changed := func(nodeaddr.Addresses) { requestSync() }
		addresses, err := nodeaddr.NewTracker(nodeaddr.Options{Choice: choice, Host: &hostaddr.System{}, Changed: changed})
		if err != nil {
			return err
		}
		host, err := nodeaddr.NewTracker(nodeaddr.Options{Host: &hostaddr.Local{}, Changed: changed})
		if err != nil {
			return err
		}
		for _, tracker := range []*nodeaddr.Tracker{addresses, host} {
			go func() { _ = tracker.Run(ctx) }()
		}

		backend := newBackend(addresses) // its SetNode calls addresses.SetNode, for "primary"
		ctx, cancel := context.WithCancel(ctx)
		flows := conntrack.Wrap(ctx, backend, conntrack.Options{Addresses: addresses.Addresses})
		defer func() { cancel(); flows.Wait() }()
		services := health.NewServices(flows, health.ServicesOptions{
			Healthy: proxy.Healthy, Addresses: addresses.Addresses, HostAddresses: host.Addresses, Events: events,
			NodeName: nodeName, RequestSync: requestSync,
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
			Sink: sink.Tee(services, proxy.Sink()), Health: proxy, Metrics: registry, SyncRequests: requests,
		})
	}
	_ = run
}
