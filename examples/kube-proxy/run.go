package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/healthcheck"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// run is the program: it does what the arguments ask for, until ctx ends.
func run(ctx context.Context, args []string, m *machine) error {
	f, err := parseFlags(args, m.out)
	if err != nil {
		return err
	}
	if f.version {
		return printVersion(m.out)
	}
	s, warnings, err := f.settings()
	if err != nil {
		return err
	}
	if err := m.logging(&s.Logging); err != nil {
		return fmt.Errorf("logging: %w", err)
	}
	logWarnings(ctx, warnings)
	switch {
	case f.writeConfigTo != "":
		return s.writeConfig(f.writeConfigTo)
	case f.cleanup:
		return cleanUpAll(ctx, m)
	}
	mode, err := chooseMode(ctx, s.KubeProxyConfiguration)
	if err != nil {
		return err
	}
	if f.initOnly {
		return m.prepare(ctx, s.KubeProxyConfiguration)
	}
	err = proxy(ctx, s, mode, m)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // asked to end while it was starting
	}
	return err
}

// proxy finds out what has to be known of the node, wires everything up, and runs it until ctx ends or something fails that
// cannot be mended.
func proxy(ctx context.Context, s *settings, mode *mode, m *machine) error {
	hostname, err := m.hostname()
	if err != nil {
		return fmt.Errorf("name of the host: %w", err)
	}
	nodeName, err := config.NodeName(s.KubeProxyConfiguration, hostname)
	if err != nil {
		return err
	}
	client, err := m.newClient(s.ClientConnection, s.master)
	if err != nil {
		return err
	}
	ips, err := waitForNode(ctx, client, nodeName, s.DetectLocalMode == v1alpha2.LocalModeNodeCIDR)
	if err != nil {
		return err
	}
	node, warnings, err := config.DetectNodeIPs(s.KubeProxyConfiguration, ips, m.families())
	if err != nil {
		return err
	}
	opts, more, err := config.RunOptions(s.KubeProxyConfiguration, nodeName, node)
	if err != nil {
		return err
	}
	logWarnings(ctx, append(warnings, more...))
	// Not before all of the above has turned out to be right: these parameters are the whole machine's.
	if err := m.prepare(ctx, s.KubeProxyConfiguration); err != nil {
		klog.FromContext(ctx).Error(err, "Some kernel parameters are not as they were configured")
	}
	m.setOOMScore(ctx, *s.Linux.OOMScoreAdj)
	klog.FromContext(ctx).Info("Starting", "mode", mode.name, "node", nodeName, "families", fmt.Sprint(node.Families), "primaryIP", node.IPs[node.Primary])

	if opts.Source, err = watch.NewClientset(client, watch.ClientsetOptions{}); err != nil {
		return err
	}
	return serve(ctx, s, mode, m, client, opts)
}

// serve runs a proxy with the options given, which have no sink yet. All that it started has ended when it returns.
func serve(asked context.Context, s *settings, mode *mode, m *machine, client kubernetes.Interface, opts kubeproxy.Options) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, end := context.WithCancelCause(asked)
	defer end(nil)
	events, err := newEvents(ctx, client, opts.State.NodeName)
	if err != nil {
		return err
	}
	defer events.close()

	// The chain of sinks, from the kernel outwards: rules; stale UDP flows, after the rules; health checks, after both.
	families := opts.State.EnabledFamilies()
	backend, err := mode.start(ctx, s.KubeProxyConfiguration, families, m)
	if err != nil {
		return fmt.Errorf("mode %s: %w", mode.name, err)
	}
	defer func() { _ = backend.Close() }()
	flows := conntrack.Wrap(ctx, backend, conntrack.Options{Table: m.flows, Families: families})
	resync := make(chan struct{}, 1)
	addresses, err := nodePortAddresses(s.KubeProxyConfiguration, m, resync)
	if err != nil {
		return err
	}
	health := &kubeproxy.Health{}
	healthy := healthcheck.NewProxy(healthcheck.ProxyOptions{
		Family:   func(f model.Family) healthcheck.FamilyHealth { return healthcheck.FamilyHealth(health.Family(f)) },
		Families: families,
		Limit:    2 * s.SyncPeriod.Duration,
	})
	services := healthcheck.NewServices(flows, healthcheck.ServicesOptions{
		Healthy: healthy.Healthy, Addresses: addresses.Addresses, Events: events, NodeName: opts.State.NodeName, Listen: m.listen,
	})

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), flows, healthy)
	servers, err := newServers(s, m, healthy, registry)
	if err != nil {
		return err
	}
	for _, server := range servers {
		wg.Go(func() {
			if err := server.run(ctx); err != nil {
				events.failed(ctx, server.failure, err)
				end(err)
			}
		})
	}
	wg.Go(func() { _ = addresses.Run(ctx) }) // its error is always nil
	events.started()

	opts.Sink = &sinks{
		TeeSink:        sink.Tee(addressSink{sink.Tee(), addresses, resync}, services, healthy.Sink()),
		afterFirstSync: func(ctx context.Context) { mode.cleanUpOthers(ctx, m) },
	}
	opts.Metrics, opts.Health, opts.Resync = registry, health, resync
	err = kubeproxy.Run(ctx, opts)
	if err == nil && asked.Err() == nil {
		err = context.Cause(ctx) // a server that had to be there is not
	}
	end(nil)
	services.Close()
	flows.Wait()
	return err // the rules stay
}

func logWarnings(ctx context.Context, warnings []config.Warning) {
	for _, w := range warnings {
		klog.FromContext(ctx).Info("Configuration: " + w.String())
	}
}

func printVersion(out io.Writer) error {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
	}
	_, err := fmt.Fprintln(out, "kube-proxy-lib", version)
	return err
}
