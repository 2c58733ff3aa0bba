package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/health"
	"sigs.k8s.io/kube-proxy-lib/healthcheck"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/page"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// run is the program. It runs until ctx ends.
func run(ctx context.Context, args []string, m *machine) error {
	f, err := parseFlags(args, m.out)
	if err != nil {
		return err
	}
	if f.version.String() != "false" {
		return printVersion(m.out, f.version == versionRaw)
	}
	s, warnings, err := f.settings()
	if err != nil {
		return err
	}
	if err := m.logging(&s.Logging, s.gates); err != nil {
		return fmt.Errorf("logging: %w", err)
	}
	logWarnings(ctx, warnings)
	m.setIPVS(f)
	switch {
	case f.writeConfigTo != "":
		logWarnings(ctx, s.notInAFile())
		return s.writeConfig(f.writeConfigTo)
	case f.cleanup:
		m.network, _ = networkName(s.KubeProxyConfiguration) // reported where it is needed
		return cleanUpAll(ctx, m)
	}
	mode, err := s.chooseMode(ctx)
	if err != nil {
		return err
	}
	if f.initOnly {
		return m.initOnly(ctx, s.KubeProxyConfiguration)
	}
	if s.Windows.RunAsService && runtime.GOOS == "windows" {
		return m.asService(ctx, func(ctx context.Context) error { return runProxy(ctx, s, mode, m) })
	}
	err = runProxy(ctx, s, mode, m)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // asked to end while it was starting
	}
	return err
}

// proxy has the parts that do not depend on the node.
type proxy struct {
	*settings
	mode     *mode
	machine  *machine
	nodeName string
	client   kubernetes.Interface // nil: the state comes from a brain
	brain    remote.Options
	events   *events
	health   *health.Proxy
	registry *prometheus.Registry
	page     *page.Page // nil: not requested
}

// runProxy runs a proxy until asked ends or something fails permanently. Everything that it started has ended when it
// returns.
func runProxy(asked context.Context, s *settings, mode *mode, m *machine) error {
	hostname, err := m.hostname()
	if err != nil {
		return fmt.Errorf("name of the host: %w", err)
	}
	nodeName, err := config.NodeName(s.KubeProxyConfiguration, hostname)
	if err != nil {
		return err
	}
	var client kubernetes.Interface
	var brain remote.Options
	if s.server.Given() {
		brain, err = s.brainOptions()
	} else {
		client, err = m.newClient(s.ClientConnection, s.master)
	}
	if err != nil {
		return err
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, end := context.WithCancelCause(asked)
	defer end(nil)
	events, err := newEvents(ctx, client, nodeName)
	if err != nil {
		return err
	}
	defer events.close()
	p := &proxy{
		settings: s, mode: mode, machine: m, nodeName: nodeName, client: client, brain: brain, events: events,
		health:   health.New(health.Options{Limit: 2 * s.SyncPeriod.Duration}),
		registry: prometheus.NewRegistry(),
	}
	p.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), p.health)

	p.health.SetNode(&model.Node{NotEligible: true}) // it is not known yet whether the node exists
	if client == nil {
		p.health.SetDisconnected(time.Now()) // until a brain is found
	}
	// The servers come first: waiting for the node may take minutes, and a liveness probe has to be answered meanwhile.
	if s.page {
		p.page = p.newPage()
	}
	servers, err := newServers(s, m, p.health, p.registry, p.page)
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
	feed, err := p.feed(ctx)
	if err == nil {
		err = p.serve(ctx, feed)
	}
	if ctx.Err() != nil && asked.Err() == nil {
		return context.Cause(ctx) // a server with hardFail could not bind its address
	}
	return err
}

// feed finds out what has to be known about the node, and returns where its state comes from.
func (p *proxy) feed(ctx context.Context) (kubeproxy.Feed, error) {
	if p.client == nil {
		return p.fromBrain(ctx)
	}
	ips, err := waitForNode(ctx, p.client, p.nodeName)
	if err != nil {
		return nil, err
	}
	families, missing := p.mode.families(ctx, p.machine)
	state, cluster, err := p.withNode(ctx, ips, families, missing)
	if err != nil {
		return nil, err
	}
	cluster.EndpointDetails = p.settings.page // the names of pods
	source, err := watch.NewClientset(p.client, watch.ClientsetOptions{EndpointDetails: p.settings.page})
	if err != nil {
		return nil, err
	}
	feed := &kubeproxy.LocalFeed{Source: source, State: state, Cluster: cluster}
	if p.page != nil {
		p.page.SetExplainer(feed)
	}
	return feed, nil
}

// withNode returns the options of the state of a node with these IPs that can serve these IP families.
func (p *proxy) withNode(
	ctx context.Context, ips []netip.Addr, families []model.Family, missing error,
) (localstate.Options, localstate.ClusterOptions, error) {
	p.health.SetNode(nil)
	node, warnings, err := config.DetectNodeIPs(p.KubeProxyConfiguration, ips, families)
	if err != nil && missing != nil {
		err = fmt.Errorf("%w (%w)", err, missing)
	}
	if err != nil {
		return localstate.Options{}, localstate.ClusterOptions{}, err
	}
	state, cluster, more, err := config.StateOptions(p.KubeProxyConfiguration, p.nodeName, node)
	if err != nil {
		return state, cluster, err
	}
	logWarnings(ctx, append(warnings, more...))
	klog.FromContext(ctx).Info("Starting", "mode", p.mode.name, "node", p.nodeName,
		"families", fmt.Sprint(node.Families),
		"primaryIP", node.IPs[node.Primary])
	return state, cluster, nil
}

// serve keeps the rules in step with the cluster until ctx ends.
func (p *proxy) serve(ctx context.Context, feed kubeproxy.Feed) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()

	// These parameters concern the whole machine, so they are set only once the configuration and the node are known to
	// be valid. In a container /proc/sys is often read-only, and another program has set the parameters.
	if err := p.machine.setConntrack(ctx, p.KubeProxyConfiguration); err != nil {
		klog.FromContext(ctx).Error(err, "Some kernel parameters do not have their configured values")
	}
	p.machine.setOOMScore(ctx, *p.Linux.OOMScoreAdj)

	for _, n := range p.notices {
		p.events.warning(n)
	}

	// The chain of sinks, from the kernel outwards: rules; then stale UDP flows; then health checks.
	families := feed.Families()
	backend, err := p.mode.start(ctx, p.KubeProxyConfiguration, p.machine,
		backendOptions{loopback: p.proxiesLoopback(), Common: frontend.Common{Families: families,
			NodePortAddresses: p.nodePorts, Metrics: p.registry, OnProblem: p.events.notServed}})
	if err != nil {
		return fmt.Errorf("mode %s: %w", p.mode.name, err)
	}
	defer func() { _ = backend.Close() }()
	requests := make(chan struct{}, 1)
	requestSync := func() {
		select {
		case requests <- struct{}{}:
		default: // there is one already
		}
	}
	addresses, err := p.nodePortAddresses(requestSync)
	if err != nil {
		return err
	}
	var rules sink.Sink = backend
	if p.page != nil {
		rules = p.page.Sink(backend)
	}
	flows := conntrack.Wrap(ctx, rules, conntrack.Options{
		Table: p.machine.flows, Families: families, Addresses: addresses.Addresses,
	})
	p.registry.MustRegister(flows)
	services := healthcheck.NewServices(flows, healthcheck.ServicesOptions{
		Healthy: p.health.Healthy, Addresses: addresses.Addresses, Events: p.events, NodeName: p.nodeName,
		RequestSync: requestSync, Listen: p.machine.listen,
	})
	opts := config.RunOptions(p.KubeProxyConfiguration)
	opts.Feed, opts.SyncRequests = feed, requests
	opts.Sink = &sinks{
		TeeSink:        sink.Tee(addressSink{sink.NewForward(nil), addresses}, services, p.health.Sink()),
		afterFirstSync: func(ctx context.Context) error { return p.mode.cleanUpOthers(ctx, p.machine) },
	}
	opts.Metrics, opts.Health = p.registry, p.health
	opts.OnPortError = p.events.portFailed
	wg.Go(func() { _ = addresses.Run(ctx) }) // its error is always nil
	p.events.started()
	err = kubeproxy.Run(ctx, opts)
	end()
	services.Close()
	flows.Wait()
	return err // the rules stay
}

// newPage returns the page. Its answers about packets depend on the configuration and the host's addresses.
func (p *proxy) newPage() *page.Page {
	return page.New(page.Options{Health: p.health, Config: func() oracle.Config {
		c := oracle.Config{
			NodePortCIDRs: p.nodePorts.CIDRs, NodePortPrimary: p.nodePorts.Primary,
			LocalhostNodePorts: servesLocalhost(p.KubeProxyConfiguration),
			LoopbackProxy:      p.proxiesLoopback(),
		}
		host, err := p.machine.host.Addresses()
		for _, a := range host {
			if err == nil && !a.Addr.IsLoopback() { // otherwise the node's own will do
				c.HostAddresses = append(c.HostAddresses, a.Addr)
			}
		}
		return c
	}})
}

func logWarnings(ctx context.Context, warnings []config.Warning) {
	for _, w := range warnings {
		klog.FromContext(ctx).Info("Configuration: " + w.String())
	}
}

func printVersion(out io.Writer, raw bool) error {
	version := programVersion()
	if info, ok := debug.ReadBuildInfo(); ok && raw {
		version = "\n" + info.String()
	}
	_, err := fmt.Fprintln(out, "kube-proxy-lib", version)
	return err
}

// programVersion returns the version of this program's module.
func programVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
