package dropin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/node/page"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Run runs a proxy until ctx ends; then it returns nil, or an error that occurred before. It returns an error that
// names the cause if the configuration is invalid, a file that it names cannot be read, this machine does not support
// it, an address cannot be bound with bindAddressHardFail, or the node's podCIDRs, if needed, are not set within five
// minutes. Other failures are logged and retried: an unreachable API server or brain, rules that cannot be applied.
//
// Before it applies anything it waits up to 30 seconds for the Node and its addresses, then goes on without them.
// [Config.OnReady] says when everything has been applied for the first time.
//
// When it returns, everything that it started has ended. Only the rules stay, so that a restart does not interrupt
// traffic; [CleanUp] removes them. It logs to the context's logger.
func Run(ctx context.Context, c Config) error {
	s, mode, err := c.inMode(ctx)
	if err != nil {
		return err
	}
	err = runProxy(ctx, s, mode)
	if ctx.Err() != nil && slices.ContainsFunc([]error{context.Canceled, context.DeadlineExceeded, context.Cause(ctx)},
		func(ended error) bool { return errors.Is(err, ended) }) {
		return nil // stopped while it was starting
	}
	return err
}

// CleanUp removes all rules that Run has ever applied on this machine, in any mode, and nothing else (S50). On Windows
// the configuration has to name the HNS network. It continues after errors and joins them. Do not call it while Run
// runs.
func CleanUp(ctx context.Context, c Config) error {
	s, err := c.settings()
	if err != nil {
		return err
	}
	s.machine.network, _ = networkName(s.KubeProxyConfiguration) // the clean-up of mode kernelspace reports the error
	return cleanUpAll(ctx, s.machine)
}

// SetKernelParameters sets the kernel parameters that Run would set, for a privileged init container, so that Run's
// container need not be privileged. Unlike Run it returns the joined errors of the parameters that it could not set.
func SetKernelParameters(ctx context.Context, c Config) error {
	s, _, err := c.inMode(ctx)
	if err != nil {
		return err
	}
	return s.machine.initOnly(ctx, s.KubeProxyConfiguration)
}

// inMode returns the settings, validated for their mode.
func (c *Config) inMode(ctx context.Context) (*settings, *mode, error) {
	s, err := c.settings()
	if err != nil {
		return nil, nil, err
	}
	mode, err := s.chooseMode(ctx)
	return s, mode, err
}

// proxy has the parts that do not depend on the node.
type proxy struct {
	*settings
	mode     *mode
	nodeName string
	client   kubernetes.Interface // nil with a brain
	events   *events
	health   *health.Proxy
	registry *prometheus.Registry
	page     *page.Page // nil if not requested
}

// gcPercent is GOGC with Config.OwnProcess, and firstGCPercent during the first Sync, when memory use peaks. Most of
// the heap is state of the cluster, so with Go's default of 100, after some hours of changes, garbage would take as
// much again. Half of that costs about 1% more CPU time at the start.
const (
	gcPercent      = 50
	firstGCPercent = 25
)

// runProxy runs a proxy until asked ends or something fails permanently. When it returns, everything that it started
// has ended.
func runProxy(asked context.Context, s *settings, mode *mode) error {
	hostname, err := s.machine.hostname()
	if err != nil {
		return fmt.Errorf("name of the host: %w", err)
	}
	nodeName, err := config.NodeName(s.KubeProxyConfiguration, hostname)
	if err != nil {
		return err
	}
	if s.OwnProcess {
		s.machine.setGCPercent(gcPercent)
	}
	client := s.Client
	switch {
	case s.Brain != nil:
		client, err = nil, s.checkBrain()
	case client == nil:
		client, err = s.machine.newClient(s.ClientConnection, s.Master)
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
		settings: s, mode: mode, nodeName: nodeName, client: client, events: events,
		health:   health.New(2 * s.SyncPeriod.Duration),
		registry: prometheus.NewRegistry(),
	}
	p.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), p.health)
	if s.machine.requests != nil {
		p.registry.MustRegister(s.machine.requests)
	}

	p.health.SetNode(&model.Node{NotEligible: true}) // it is not known yet whether the node exists
	if client == nil {
		p.health.SetDisconnected(time.Now()) // until a brain is found
	}
	// The servers start first: waiting for the node may take minutes, and liveness probes need answers in the meantime.
	if s.Page {
		p.page = p.newPage()
	}
	servers, err := newServers(s, p.health, p.registry, p.page)
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

// feed waits for the node's IPs, then returns the feed of the node's state.
func (p *proxy) feed(ctx context.Context) (kubeproxy.Feed, error) {
	if p.client == nil {
		return p.fromBrain(ctx)
	}
	ips, err := waitForNode(ctx, p.client, p.nodeName, p.nodeMissing(ctx))
	if err != nil {
		return nil, err
	}
	families, missing := p.mode.families(ctx, p.machine)
	state, cluster, err := p.withNode(ctx, ips, families, missing)
	if err != nil {
		return nil, err
	}
	cluster.EndpointDetails = p.Page // pod names
	cluster.NoMetadata = !p.Page && !p.mode.readsMetadata
	source, err := watch.NewClientset(p.client, watch.ClientsetOptions{EndpointDetails: p.Page})
	if err != nil {
		return nil, err
	}
	feed := &kubeproxy.LocalFeed{Source: source, State: state, Cluster: cluster}
	if p.page != nil {
		p.page.SetExplainer(feed)
	}
	return feed, nil
}

// withNode returns the state options for a node with these IPs, and with these supported IP families.
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
	cluster.EndpointLimits = p.EndpointLimits
	logWarnings(ctx, append(warnings, more...))
	klog.FromContext(ctx).Info("Starting", "mode", p.mode.name, "node", p.nodeName,
		"families", fmt.Sprint(node.Families),
		"primaryIP", node.IPs[node.Primary])
	return state, cluster, nil
}

// serve keeps the rules up to date with the cluster until ctx ends.
func (p *proxy) serve(ctx context.Context, feed kubeproxy.Feed) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()

	// These parameters affect the whole machine, so they are set only once the configuration and the node are known to be
	// valid. In a container /proc/sys is often read-only, and another program has set the parameters.
	if err := p.machine.setConntrack(ctx, p.KubeProxyConfiguration); err != nil {
		klog.FromContext(ctx).Error(err, "Some kernel parameters do not have their configured values")
	}
	if p.OwnProcess {
		p.machine.setOOMScore(ctx, *p.Linux.OOMScoreAdj)
	}

	for _, n := range p.notices {
		p.events.warning(n)
	}

	// The chain of sinks, from the kernel outwards: rules; then stale UDP flows; then health checks.
	families := feed.Families()
	options := backendOptions{loopback: p.proxiesLoopback(), Common: frontend.Common{Families: families,
		NodePortAddresses: p.nodePorts, Limits: p.Limits, Metrics: p.registry, OnProblem: p.events.notServed}}
	if p.client != nil {
		options.apiServers = apiServers(p.client)
	} else {
		options.apiServers = brains(p.Brain.Targets)
	}
	options.otherNodes = func() (*otherNodes, error) {
		return newOtherNodes(ctx, &wg, p.client, p.nodeName, p.machine.reached)
	}
	backend, err := p.mode.start(ctx, p.KubeProxyConfiguration, p.machine, options)
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
	addresses, err := p.trackAddresses(ctx, requestSync)
	if err != nil {
		return err
	}
	served := addresses.nodePorts.Addresses
	if b, ok := backend.(follower); ok {
		b.OnAddresses(requestSync)
		served = b.NodePortAddresses // another tracker may know an address before the rules do
	}
	var rules sink.Sink = backend
	if p.page != nil {
		rules = p.page.Sink(backend)
	}
	contests, _ := backend.(sink.ContestReporter)
	flows := conntrack.Wrap(ctx, rules, conntrack.Options{
		Table: p.machine.flows, Families: families, Addresses: served, Contests: contests,
		LocalhostNodePorts: servesLocalhost(p.KubeProxyConfiguration),
	})
	if b, ok := backend.(follower); ok {
		b.OnRepair(flows.CheckAll)
	}
	p.registry.MustRegister(flows)
	external, _ := backend.(sink.ExternalReporter)
	services := health.NewServices(flows, health.ServicesOptions{
		Healthy: p.health.Healthy, Addresses: addresses.nodePorts.Addresses, HostAddresses: addresses.All,
		Events: p.events, NodeName: p.nodeName, RequestSync: requestSync, Listen: p.machine.listen, External: external,
	})
	opts := config.RunOptions(p.KubeProxyConfiguration)
	opts.Feed, opts.SyncRequests = feed, requests
	all := &sinks{
		TeeSink: sink.Tee(addressSink{sink.NewForward(nil), addresses.nodePorts}, services, p.health.Sink()),
		others: &others{
			remove: func(ctx context.Context) error { return p.mode.cleanUpOthers(ctx, p.machine) },
			find:   p.machine.findUpstream,
			back:   func(found string) { p.anotherKubeProxy(ctx, found) },
		},
	}
	if p.OwnProcess {
		all.setGCPercent = p.machine.setGCPercent
	}
	opts.Sink, opts.Metrics, opts.Health = all, p.registry, p.health
	opts.OnPortError, opts.OnReady, opts.Syncer = p.events.portFailed, p.OnReady, p.Syncer
	wg.Go(func() { addresses.run(ctx) })
	p.events.started()
	err = kubeproxy.Run(ctx, opts)
	end()
	services.Close()
	flows.Wait()
	return err // the rules stay
}

// newPage returns the page. Its answers about packets use the configuration and the host's addresses.
func (p *proxy) newPage() *page.Page {
	return page.New(page.Options{Health: p.health, Config: func() oracle.Config {
		c := oracle.Config{
			NodePortCIDRs: p.nodePorts.CIDRs, NodePortPrimary: p.nodePorts.Primary,
			LocalhostNodePorts: servesLocalhost(p.KubeProxyConfiguration),
			LoopbackProxy:      p.proxiesLoopback(),
		}
		host, err := p.machine.host.Addresses()
		for _, a := range host {
			if err == nil && !a.Addr.IsLoopback() { // otherwise use the node's own
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
