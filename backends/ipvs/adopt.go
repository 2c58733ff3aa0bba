package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// readHost reads which addresses are the host's own.
func (f *family) readHost() error {
	list, err := f.options.Host.Addresses()
	if err != nil {
		return fmt.Errorf("addresses of this host: %w", err)
	}
	f.hostAddrs = map[netip.Addr]bool{}
	for _, a := range list {
		if !slices.Contains(ServiceLinks(), a.Interface) {
			f.hostAddrs[a.Addr.Unmap().WithZone("")] = true
		}
	}
	return nil
}

// read reads the virtual servers, addresses and rules of the kernel.
func (f *family) read(ctx context.Context) error {
	list, err := f.dataplane.Servers(ctx)
	if err != nil {
		return fmt.Errorf("list virtual servers: %w", err)
	}
	f.foreign = map[dp.ServerKey]dp.Server{}
	there := map[dp.ServerKey]bool{}
	for _, actual := range list {
		if actual.Family != f.key {
			continue
		}
		if actual.Flags&dp.Owned == 0 {
			f.foreign[actual.ServerKey] = actual
			continue
		}
		if err := f.adopt(ctx, actual); err != nil {
			return err
		}
		there[actual.ServerKey] = true
	}
	for key, s := range f.servers {
		if !there[key] {
			s.isGone()
		}
	}
	addrs, err := f.dataplane.Addresses(ctx, f.key)
	if err != nil {
		return err
	}
	clear(f.bound)
	for _, a := range addrs {
		f.bound[a] = true
		f.dirtyAddrs[a] = true
	}
	for a := range f.users {
		f.dirtyAddrs[a] = true
	}
	f.filter.known = false
	return nil
}

// adopt takes over a virtual server that the kernel has.
func (f *family) adopt(ctx context.Context, actual dp.Server) error {
	destinations, err := f.dataplane.Destinations(ctx, actual.ServerKey)
	if err != nil {
		return fmt.Errorf("endpoints of virtual server %v: %w", actual.ServerKey, err)
	}
	f.adoptWith(actual, destinations)
	return nil
}

// adoptWith is adopt, for a virtual server whose destinations are known.
func (f *family) adoptWith(actual dp.Server, destinations []dp.Destination) {
	s := f.servers[actual.ServerKey]
	if s == nil {
		s = f.serverFor(actual.ServerKey, actual.Protocol)
		if s.protocol == 0 {
			s.protocol = model.TCP // of one by mark it is not known
		}
	}
	s.adopt(actual, destinations)
	f.dirty[s] = true
}

// retryTaken serves the ports that virtual servers of others kept from being served, if these are gone. It finds out by
// creating the virtual server: listing all of them would cost as much as the size of the cluster.
func (f *family) retryTaken(ctx context.Context, c *frontend.Changes) {
	freed := map[model.PortName]*frontend.PortChange{}
	for key, name := range f.taken {
		p := c.Port(name)
		if p == nil {
			continue
		}
		want := f.spec(p.After, key)
		err := f.dataplane.AddServer(ctx, want)
		if errors.Is(err, syscall.EEXIST) {
			continue
		}
		if err == nil {
			f.adoptWith(want, nil)
		} // else the commit meets the error, too
		delete(f.foreign, key)
		freed[name] = p
	}
	for _, p := range freed {
		f.describe(p)
	}
}

// adoptForeign takes over those virtual servers of others that have the address and port of a service: those of
// upstream kube-proxy, for example.
func (f *family) adoptForeign(ctx context.Context) error {
	var first dp.ServerKey
	adopted := 0
	for _, key := range f.wantForeign {
		actual, there := f.foreign[key]
		if s := f.servers[key]; !there || s == nil || !s.wanted || s.exists {
			continue
		}
		if err := f.adopt(ctx, actual); err != nil {
			return err
		}
		delete(f.foreign, key)
		if adopted++; adopted == 1 {
			first = key
		}
	}
	f.wantForeign = nil
	if adopted > 0 {
		klog.FromContext(ctx).Info("Taking over virtual servers of another program", "family", f.key, "count", adopted,
			"first", first)
	}
	return nil
}
