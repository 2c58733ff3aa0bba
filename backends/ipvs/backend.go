package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/lifecycle"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// Backend is a [frontend.Backend], which documents its methods. Sync applies services with IPVS.
//
// DescribeService returns, for each family, the virtual servers of a service with their real servers, as "ipvsadm -Sn"
// prints them, and its elements in the packet filter with the chains that they point at, which it may share with
// others, as commands for nft. The virtual servers are as the kernel was last known to have them; real servers of
// weight 0 take no new connections.
//
// CleanUp deletes the backend's virtual servers, its dummy interface and its tables. Connections end.
type Backend struct {
	*running

	families map[model.Family]*family
}

type running = lifecycle.Running

// New checks that the kernel supports what the backend needs, and returns the backend. For the check it makes a virtual
// server with a mark that no packet has, and deletes it again; it changes nothing else until the first Sync. In the
// background, until ctx ends or Close is called, it removes drained endpoints, and repairs changes by others in its
// tables and of its interface; it logs to ctx's logger. ctx does not bound calls of Sync.
func New(ctx context.Context, o Options) (*Backend, error) {
	s := o.spec(o.open)
	running, err := s.Start(ctx)
	if err != nil {
		return nil, err
	}
	return &Backend{running, s.Families}, nil
}

// CleanUp deletes what a backend that is not running has left: of o only Families, Link, Dataplane and
// NFTables matter. It is not an error if nothing is left, or if the kernel has not loaded IPVS: CleanUp does not load
// it.
func CleanUp(ctx context.Context, o Options) error {
	return o.spec(func(ctx context.Context, s *lifecycle.Spec[*family]) error {
		if err := o.openKernel(ctx, s, dp.IsLoaded()); err != nil {
			return err
		}
		return s.Serve(ctx, func(f model.Family) (*family, error) { return newFamily(f, &o, &s.Metrics), nil })
	}).CleanUp(ctx)
}

// spec returns how the backend does what all backends do.
func (o *Options) spec(open func(context.Context, *lifecycle.Spec[*family]) error) *lifecycle.Spec[*family] {
	err := o.complete()
	return &lifecycle.Spec[*family]{Name: "ipvs", Common: o.Common, MasqueradeMark: &o.MasqueradeMark, Invalid: err,
		Open: open, Apply: (*family).sync, Check: (*family).check, Every: o.drainInterval,
		Describe: (*family).describeService, Remove: (*family).cleanUp, RemoveShared: o.deleteLink}
}

// openKernel opens the parts of the kernel that the options do not give; IPVS only if ipvs is set.
func (o *Options) openKernel(ctx context.Context, s *lifecycle.Spec[*family], ipvs bool) error {
	if ipvs {
		err := lifecycle.Default(s, &o.Dataplane, func() (dp.Interface, error) { return dp.NewKernel(ctx, o.Link) })
		if err != nil {
			return err
		}
	}
	return lifecycle.Default(s, &o.NFTables, func() (nft.Interface, error) { return nft.NewNetlink() })
}

// open opens what the backend needs, and checks it.
func (o *Options) open(ctx context.Context, s *lifecycle.Spec[*family]) error {
	if err := o.openKernel(ctx, s, true); err != nil {
		return err
	}
	if o.Host == nil {
		host, err := s.ThisHost(o.serviceLinks()...)
		if err != nil {
			return err
		}
		o.Host = host
	} else {
		o.Host = withoutLinks{o.Host, o.serviceLinks()}
	}
	if err := checkScheduler(ctx, o.Dataplane, o.Scheduler); err != nil {
		return err
	}
	sticky := byClient
	if err := checkScheduler(ctx, o.Dataplane, sticky); err != nil {
		klog.FromContext(ctx).Info(
			"No session affinity where a service's traffic policy is Local, for pods of this node "+
				"and the node itself", "reason", err)
		sticky = o.Scheduler
	}
	follow := nodeaddr.Options{Host: o.Host}
	hosts, err := s.Follow(follow)
	if err != nil {
		return err
	}
	follow.Choice = o.NodePortAddresses
	nodePorts, err := s.Follow(follow)
	if err != nil {
		return err
	}
	s.NodePorts.Tracker = nodePorts
	s.Drift = append(s.Drift, o.NFTables.Drift(), o.Dataplane.Drift())
	if o.OtherNodes != nil {
		s.Drift = append(s.Drift, o.OtherNodes.Changed())
	}
	s.Yield = append(s.Yield, o.NFTables.Yield)
	return s.Serve(ctx, func(key model.Family) (*family, error) {
		if err := probeFilter(ctx, o, key); err != nil {
			return nil, err
		}
		f := newFamily(key, o, &s.Metrics)
		f.ports.sticky, f.nodePorts, f.hosts = sticky, nodePorts, hosts
		return f, nil
	})
}

// deleteLink deletes the interface that the families share, unless one of them may still be served.
func (o *Options) deleteLink(ctx context.Context) error {
	if o.Dataplane == nil || o.Families != nil && len(o.Families) < 2 {
		return nil
	}
	return o.Dataplane.DeleteLink(ctx)
}

// ServiceLinks are the interfaces whose addresses are not the node's own, by default: upstream kube-proxy's is among
// them. Options.Link is another one.
func ServiceLinks() []string { return []string{dp.DefaultLink, upstreamLink} }

func (o *Options) serviceLinks() []string { return append(ServiceLinks(), o.Link) }

// withoutLinks is a host without the addresses of some interfaces.
type withoutLinks struct {
	nodeaddr.Host
	links []string
}

// Addresses implements [nodeaddr.Host].
func (h withoutLinks) Addresses() ([]nodeaddr.HostAddress, error) {
	list, err := h.Host.Addresses()
	return slices.DeleteFunc(slices.Clone(list), func(a nodeaddr.HostAddress) bool {
		return slices.Contains(h.links, a.Interface)
	}), err
}

// checkScheduler finds out whether the kernel has a scheduler. The kernel loads its module if it can.
func checkScheduler(ctx context.Context, d dp.Interface, scheduler string) error {
	// No packet should have this mark, and the virtual server exists for a moment only. If there is one already, another
	// program made it, or a process that died right here, whose virtual server the first Sync deletes.
	probe := dp.Server{ServerKey: dp.ServerKey{Family: model.IPv4, Mark: 0x7fffffff}, Scheduler: scheduler,
		Flags: dp.Owned}
	err := d.AddServer(ctx, probe)
	for ; errors.Is(err, syscall.EEXIST) && probe.Mark > 0x7fffff00; err = d.AddServer(ctx, probe) {
		probe.Mark--
	}
	if errors.Is(err, syscall.ENOENT) {
		return &dp.MissingModuleError{What: "IPVS scheduler " + scheduler, Module: "ip_vs_" + scheduler}
	}
	if err == nil {
		err = d.DeleteServer(ctx, probe.ServerKey)
	}
	if err != nil {
		return fmt.Errorf("check the scheduler %s: %w", scheduler, err)
	}
	return nil
}

// probeFilter has the kernel check a table without making it.
func probeFilter(ctx context.Context, o *Options, f model.Family) error {
	probe := newFilter(o.NFTables, nft.TableKey{Family: f, Name: tableName + "-probe"})
	probe.known = true
	for _, c := range newConfig(f, o, &model.Node{}, nil, nil).baseChains(probe.sets) {
		probe.addChain(c)
	}
	if err := o.NFTables.Check(ctx, probe.transaction(false)); err != nil {
		return fmt.Errorf("this kernel lacks an nftables feature needed for %v: %w", f, err)
	}
	return nil
}

// sync applies the changes of a family.
func (f *family) sync(ctx context.Context, c *frontend.Changes) error {
	if c.Full() || !f.known {
		if err := f.options.prepare(ctx, f.key); err != nil {
			return err
		}
	}
	return f.apply(ctx, c, f.nextConfig(c))
}

// nextConfig returns the configuration that the family is to have.
func (f *family) nextConfig(c *frontend.Changes) *config {
	next := newConfig(f.key, f.options, c.Node(), f.nodePorts.Addresses().Of(f.key), f.hosts.Addresses().Of(f.key))
	if next.apiServers = apiServers(c); len(next.apiServers) == 0 && f.ports.config != nil {
		next.apiServers = f.ports.config.apiServers // the last one stops, or starts again: it must stay within reach
	}
	return next
}

// check drains, and repairs what others have changed. Of their changes to virtual servers it finds only deletions; the
// comparison at each resync finds all others.
func (f *family) check(ctx context.Context, c *frontend.Changes) (frontend.CheckResult, error) {
	if !f.known {
		if !f.missing.failed {
			return frontend.CheckResult{}, nil // the next Sync does everything
		}
		err := f.apply(ctx, c, f.nextConfig(c))
		f.missing.failed = err != nil
		return frontend.CheckResult{Repaired: true}, err
	}
	now := time.Now()
	// This may run more often, for another reason. The ticker need not be exact.
	var undrained error // repairs do not wait for what cannot be deleted
	if now.Sub(f.drained) > f.options.drainInterval/2 {
		f.drained = now
		undrained = f.drain(ctx)
	}
	if next := f.nextConfig(c); !next.equal(f.ports.config) {
		return frontend.CheckResult{Repaired: true, Expected: true}, errors.Join(undrained, f.apply(ctx, c, next))
	}
	if f.addresses.follow(f.ports.config.apiServers) {
		return frontend.CheckResult{Repaired: true, Expected: true}, errors.Join(undrained, f.commit(ctx, c))
	}
	repaired, err := f.repair(ctx)
	restored, lost := f.restoreServers(ctx, c, now)
	return frontend.CheckResult{Repaired: repaired || restored}, errors.Join(undrained, err, lost)
}

// repair repairs what another program has changed of the packet filter and of the interface, in this order: the filter
// guards the addresses.
func (f *family) repair(ctx context.Context) (repaired bool, err error) {
	logger := klog.FromContext(ctx)
	if f.filter.dataplane.Drifted(f.filter.key) {
		f.filter.known = false
		if err := f.commitFilter(ctx, true); err != nil {
			return false, err
		}
		f.metrics.repairs.Inc()
		logger.Info("Repaired a table that another program had changed", "table", f.filter.key)
		repaired = true
	}
	lost, err := f.addresses.repair(ctx, f.key)
	if lost > 0 {
		f.metrics.repairs.Inc()
		logger.Info("Restored service addresses that another program had deleted", "family", f.key, "count", lost)
	}
	delivered, failed := f.addresses.others.repair(ctx, f.dataplane)
	if delivered {
		f.metrics.repairs.Inc()
		logger.Info("Restored the routing rule or route of services at other machines' addresses, which another program "+
			"had deleted", "family", f.key, "priority", dp.DeliveryPriority, "table", dp.DeliveryTable)
	}
	return repaired || lost > 0 || delivered, errors.Join(err, failed)
}
