package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// EventRecorder records events of type Warning about a Service. With client-go's recorder the implementation is
//
//	recorder.Eventf(&v1.ObjectReference{Kind: "Service", Namespace: service.Namespace, Name: service.Name},
//		nil, v1.EventTypeWarning, reason, action, note)
type EventRecorder interface {
	// ServiceWarning records one event. It is called during Sync and should not wait for the API server.
	ServiceWarning(service model.ServiceName, reason, action, note string)
}

// ServicesOptions configures a [Services]. The zero value is usable.
type ServicesOptions struct {
	// Healthy reports whether the proxy itself is healthy, for example health.Proxy's Healthy. It may be called from
	// several goroutines at once. Default: always true.
	Healthy func() bool
	// Addresses returns the addresses to listen on, those of node ports, for example [nodeaddr.Tracker.Addresses]. It
	// is called at every Sync. Default: all addresses.
	Addresses func() nodeaddr.Addresses
	// HostAddresses returns all addresses of the host: the check of a Service is also served at those that are its VIPs
	// or external IPs (S65). It is called at every Sync. With a [nodeaddr.Tracker] of a hostaddr.Local it is its
	// Addresses, and the tracker's Changed should request a Sync, as RequestSync does. Default: none.
	HostAddresses func() nodeaddr.Addresses
	// External reports which service ports have lost all external addresses to others (S59). It belongs to the wrapped
	// sink. Default: the wrapped sink itself, if it is a [sink.ExternalReporter]; backends are, but middleware around
	// them is not.
	External sink.ExternalReporter
	// Events receives an event when a port cannot be opened, or a Service has too many addresses. Default: that is only
	// logged.
	Events EventRecorder
	// RequestSync, if given, is called half a minute after a port could not be opened, or was closed by an error, so
	// that it is tried again even if nothing changes in the cluster: it should send to the SyncRequests of
	// kubeproxy.Options, without blocking. Default: the port is tried again at the next Sync, which may be hours away.
	RequestSync func()
	// NodeName is named in the events.
	NodeName string
	// Listen opens a listener. network is "tcp4" or "tcp6", address has a port. Default: that of a zero
	// net.ListenConfig.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
}

// Services is a sink that serves the health checks of Services (S38).
//
// # Where it listens
//
// It listens on the health-check port of each Service: on all addresses of the node, or on those that
// ServicesOptions.Addresses returns, of both families. A load balancer may probe a Service of one family through the
// other. On a machine with only one family, it listens in that family. It also listens on the Service's own VIPs and
// external IPs, for as long as ServicesOptions.HostAddresses has them: some load balancers probe those (S65). Of these
// it listens on 16 in each family, VIPs first; for a Service with more there is an Event, once, with the reason
// TooManyHealthCheckAddresses.
//
// # What it answers
//
// For any path it answers 200 if the proxy is healthy and endpoints of the Service are ready on this node, otherwise
// 503. The count is the number of distinct addresses of the request's family or, if the Service does not have that
// family, of its own. It is 0 while outside clients reach no port of the Service on this node, in either family,
// because the wrapped sink refuses them all, with a [sink.PortError] without ServesExternal or by limits, or because
// other Services own all of their node ports, VIPs and external IPs (S59). The count is in the header
// X-Load-Balancing-Endpoint-Weight and in the body:
//
//	{
//		"service": {
//			"namespace": "default",
//			"name": "web"
//		},
//		"localEndpoints": 2,
//		"serviceProxyHealthy": true
//	}
//
// # When
//
// Changes take effect when a Sync of the wrapped sink has succeeded: new counts are answered from then on, and the
// listener of a changed port is closed and the new one opened. If only one family is applied, only that one is updated.
// A port that cannot be opened is tried again at the next Sync (S39), which ServicesOptions.RequestSync can trigger,
// but not within a second. Each failure causes an Event with the reason FailedToStartServiceHealthcheck (recorders
// combine repeated Events into a series); it is logged again only when the error changes. Addresses are opened
// independently: one that is in use does not affect the others.
//
// # Goroutines
//
// Every listener has one goroutine. All end when the context of the Sync that opened them ends, or with
// [Services.Close].
type Services struct {
	*sink.ServiceMemory // passes calls on to the wrapped sink, and keeps wanted
	opts                ServicesOptions
	// Only the goroutine that calls Sink's methods uses these.
	wanted  map[model.ServiceName]*model.Service // those with a health check
	touched map[model.ServiceName]struct{}       // those that may differ from what is served
	outside outside

	mu     sync.Mutex // guards what follows
	closed bool
	open   map[model.ServiceName]*instance
	addrs  nodeaddr.Addresses // as of the last Sync
	host   nodeaddr.Addresses // as of the last Sync

	retries retries
}

// instance is the health check of one service.
type instance struct {
	name           model.ServiceName
	localEndpoints model.PerFamily[atomic.Int64] // by the family of the request
	counted        map[model.Family]model.Family
	listeners      map[listenKey]*listener
	problem        string // that has been logged, of opening a port
	tooMany        bool   // the service has more than healthcheck.MaxVIPs; that has been logged
	// failed has the addresses that could not be opened at the last attempt, and when that was.
	failed map[listenKey]time.Time
}

// counted returns the family whose endpoints count for requests in a family: the same one if the service has it,
// otherwise the other one; 0 if the service has neither.
func counted(service *model.Service, f model.Family) model.Family {
	other := model.IPv4 + model.IPv6 - f
	switch {
	case service == nil:
	case service.ClusterIP(f).IsValid():
		return f
	case service.ClusterIP(other).IsValid():
		return other
	}
	return 0
}

// listenKey is an address and port to listen on.
type listenKey struct {
	family model.Family
	addr   netip.Addr // the unspecified address for all
	port   uint16
}

var (
	_ sink.Sink            = (*Services)(nil)
	_ sink.NodeSetter      = (*Services)(nil)
	_ sink.Resyncer        = (*Services)(nil)
	_ sink.FailureResyncer = (*Services)(nil)
)

// NewServices returns a Services that does not listen yet. It passes every call on to next, and starts to serve a
// health check only after a Sync of next has succeeded, so that load balancers do not send traffic before it can be
// handled. next may be nil.
func NewServices(next sink.Sink, opts ServicesOptions) *Services {
	if opts.Healthy == nil {
		opts.Healthy = func() bool { return true }
	}
	if opts.Addresses == nil {
		opts.Addresses = func() nodeaddr.Addresses { return nodeaddr.Addresses{All: model.BothFamilies} }
	}
	if opts.HostAddresses == nil {
		opts.HostAddresses = func() nodeaddr.Addresses { return nodeaddr.Addresses{} }
	}
	if opts.Listen == nil {
		opts.Listen = new(net.ListenConfig).Listen
	}
	s := &Services{
		opts:    opts,
		wanted:  map[model.ServiceName]*model.Service{},
		touched: map[model.ServiceName]struct{}{},
		outside: newOutside(),
		open:    map[model.ServiceName]*instance{},
		retries: retries{requestSync: opts.RequestSync, pause: failurePause},
	}
	if opts.External == nil {
		opts.External, _ = next.(sink.ExternalReporter)
	}
	if opts.External != nil {
		opts.External.ReportExternal(s.outside.report)
	}
	s.ServiceMemory = sink.RememberServices(next, s.wanted, func(s *model.Service) bool { return s.HealthCheck != nil },
		func(name model.ServiceName) { s.touched[name] = struct{}{} })
	return s
}

// Sync implements [sink.Sink]. It returns what the next sink returns.
func (s *Services) Sync(ctx context.Context) error {
	err := s.Forward.Sync(ctx)
	failed := sink.FailedFamilies(err)
	var families []model.Family // those that were applied
	for _, f := range model.Families() {
		if !failed.Has(f) {
			families = append(families, f)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || ctx.Err() != nil || len(families) == 0 {
		return err
	}
	for _, name := range s.outside.note(err, failed) {
		if s.wanted[name] != nil {
			s.touched[name] = struct{}{}
		}
	}
	// Close first, all of them: a port may move from one service to another.
	due := s.takeDue()
	for _, name := range due {
		s.closeUnwanted(ctx, name, families)
	}
	for _, name := range due {
		s.openMissing(ctx, name, families)
		if failed != 0 {
			s.touched[name] = struct{}{}
		}
	}
	return err
}

// takeDue returns the services that may have something to open or close, in order.
func (s *Services) takeDue() []model.ServiceName {
	due := s.touched
	maps.Copy(due, s.retries.take())
	if addrs := s.opts.Addresses(); !addrs.Equal(s.addrs) {
		s.addrs = addrs
		for name := range s.wanted {
			due[name] = struct{}{}
		}
	}
	s.takeHost(func(name model.ServiceName) { due[name] = struct{}{} })
	s.touched = map[model.ServiceName]struct{}{}
	return slices.SortedFunc(maps.Keys(due), model.ServiceName.Compare)
}

// keys returns the addresses and ports to listen on for a service, in the given families; none if the service is nil.
// tooMany: it has VIPs and external IPs that are not among them because they are too many.
func (s *Services) keys(service *model.Service, families []model.Family) (keys []listenKey, tooMany bool) {
	for _, f := range model.Families() {
		if !slices.Contains(families, counted(service, f)) {
			continue
		}
		addrs := []netip.Addr{f.Everything().Addr()}
		if !s.addrs.All.Has(f) {
			vips, more := s.vips(service, f)
			addrs, tooMany = append(s.addrs.Of(f), vips...), tooMany || more
		}
		for _, a := range addrs {
			keys = append(keys, listenKey{f, a, service.HealthCheck.NodePort})
		}
	}
	return keys, tooMany
}

func (s *Services) closeUnwanted(ctx context.Context, name model.ServiceName, families []model.Family) {
	i := s.open[name]
	if i == nil {
		return
	}
	service := s.wanted[name]
	list, _ := s.keys(service, families)
	keys := map[listenKey]struct{}{}
	for _, key := range list {
		keys[key] = struct{}{}
	}
	for key, l := range i.listeners {
		_, wanted := keys[key]
		depends := cmp.Or(counted(service, key.family), i.counted[key.family])
		if slices.Contains(families, depends) && !wanted || l.ended() {
			klog.FromContext(ctx).V(2).Info("Closing a health check server", "service", name, "address", l.address)
			l.close()
			delete(i.listeners, key)
		}
	}
	if len(i.listeners) == 0 && service == nil {
		delete(s.open, name)
	}
}

func (s *Services) openMissing(ctx context.Context, name model.ServiceName, families []model.Family) {
	service := s.wanted[name]
	if service == nil {
		return
	}
	i := s.open[name]
	if i == nil {
		i = &instance{name: name, counted: map[model.Family]model.Family{}, listeners: map[listenKey]*listener{}}
		s.open[name] = i
	}
	endpoints := service.HealthCheck.LocalEndpoints // counted by localstate, flush_service.go (S38)
	if !s.outside.isServed(service) {
		endpoints = model.PerFamily[int]{}
	}
	for _, f := range model.Families() {
		if c := counted(service, f); slices.Contains(families, c) {
			i.counted[f] = c
			i.localEndpoints.At(f).Store(int64(*endpoints.At(c)))
		}
	}
	keys, tooMany := s.keys(service, families)
	s.reportTooMany(ctx, i, tooMany, len(families) == len(model.Families()))
	var errs []error
	failedBefore := i.failed
	i.failed = nil
	for _, key := range keys {
		if i.listeners[key] != nil {
			continue
		}
		if at, failed := failedBefore[key]; failed && time.Since(at) < s.retries.pause {
			i.fail(key, at) // the last attempt was too recent
			continue
		}
		l, err := s.listen(ctx, i, key)
		if lacksFamily(err) && (i.counted[key.family] != key.family || s.isVIP(key.addr)) {
			if !key.addr.IsUnspecified() { // a new address of the machine may not be usable yet, a VIP may have moved on
				s.retries.later(name)
			}
			continue
		}
		if err != nil {
			errs = append(errs, err)
			i.fail(key, time.Now())
			continue
		}
		klog.FromContext(ctx).V(2).Info("Opened a health check server", "service", name, "address", l.address)
		i.listeners[key] = l
	}
	if len(i.failed) == 0 {
		i.problem = ""
		return
	}
	s.retries.later(name)
	if len(errs) == 0 {
		return
	}
	err, port := errors.Join(errs...), service.HealthCheck.NodePort
	if err.Error() != i.problem {
		i.problem = err.Error()
		klog.FromContext(ctx).Error(err, "Cannot start a health check server; trying again at the next Sync",
			"service", name, "port", port)
	}
	if s.opts.Events != nil {
		s.opts.Events.ServiceWarning(name, "FailedToStartServiceHealthcheck",
			"Listen", fmt.Sprintf("node %s failed to start healthcheck %q on port %d: %s",
				s.opts.NodeName, name, port, strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
}

// fail notes that an address could not be opened.
func (i *instance) fail(key listenKey, at time.Time) {
	if i.failed == nil {
		i.failed = map[listenKey]time.Time{}
	}
	i.failed[key] = at
}

// lacksFamily reports whether a listener could not be opened because the machine has no addresses of its family.
func lacksFamily(err error) bool {
	return errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// Close stops listening, and returns when all goroutines have ended. Later Syncs do nothing.
func (s *Services) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.retries.stop()
	for _, i := range s.open {
		for _, l := range i.listeners {
			l.close()
		}
	}
	clear(s.open)
}
