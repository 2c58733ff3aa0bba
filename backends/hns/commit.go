package hns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/hns/dataplane"
)

// commit applies the wanted state. With retry it also retries what failed before. A failure of one load balancer is
// recorded in its err; commit returns only errors that concern all of them. It stops when HNS is not running.
func (f *family) commit(ctx context.Context, retry bool) error {
	defer func() {
		f.readNet, f.listedBalancers, f.listedEndpoints = false, false, false
		f.refused, f.root = map[netip.Addr]error{}, ""
	}()
	// More can turn out to be different on the way, when HNS says so.
	for range 3 {
		due := f.due(retry)
		if len(due) == 0 {
			break
		}
		retry = false
		renewed, err := f.prepare(ctx, due)
		if err != nil {
			return err
		}
		if renewed {
			if err := f.readEndpoints(ctx); err != nil {
				return err
			}
			if _, err := f.compare(ctx); err != nil {
				return err
			}
			continue
		}
		if err := f.putAll(ctx, due); err != nil {
			return err
		}
	}
	// Other failures are logged, and tried again.
	if err := f.deleteUnused(ctx); errors.Is(err, dp.ErrNotRunning) {
		return err
	}
	return nil
}

// due returns the balancers to look at, in order.
func (f *family) due(retry bool) []*balancer {
	var due []*balancer
	for b := range f.dirty {
		if b.err == nil || retry {
			due = append(due, b)
		}
	}
	slices.SortFunc(due, func(a, b *balancer) int { return a.key.Compare(b.key) })
	return due
}

// prepare records the load balancers that are about to be created and reads the network. It returns true if the network
// was recreated: then nothing known about it is valid any more.
func (f *family) prepare(ctx context.Context, due []*balancer) (renewed bool, err error) {
	var created []dp.Key
	for _, b := range due {
		if _, s := b.want(); !s.isEmpty() {
			created = append(created, b.key)
		}
	}
	if len(created) == 0 || f.skipped {
		return false, nil
	}
	if err := f.record.change(created, nil); err != nil {
		return false, err
	}
	if !f.readNet {
		if renewed, err := f.readNetwork(ctx); renewed || err != nil {
			return renewed, err
		}
	}
	if f.isOverlay() && !f.skipped {
		return false, f.ensureSourceVIP(ctx)
	}
	return false, nil
}

// putAll makes the load balancers that are due.
func (f *family) putAll(ctx context.Context, due []*balancer) error {
	var gone []dp.Key
	var err error
	var undeleted failures.List
	for _, b := range due {
		if err = ctx.Err(); err != nil {
			break
		}
		before := b.err
		b.err = f.put(ctx, b, before != nil)
		if errors.Is(b.err, dp.ErrNotRunning) {
			err = fmt.Errorf("%v: %w", b.key, b.err) // all others would fail, too
			break
		}
		if b.err != nil {
			if _, s := b.want(); s == nil && before == nil {
				undeleted.Add(fmt.Errorf("%v: %w", b.key, b.err))
			}
			continue
		}
		delete(f.dirty, b)
		if len(b.asked) == 0 {
			delete(f.balancers, b.key)
		}
		if b.have == nil {
			gone = append(gone, b.key)
		}
	}
	if err := undeleted.Err(); err != nil {
		klog.FromContext(ctx).Error(err, "Could not delete load balancers, trying again later")
	}
	return errors.Join(err, f.record.change(nil, gone)) // also of what was done before ctx ended
}

// put applies one load balancer. failed: it has failed before.
func (f *family) put(ctx context.Context, b *balancer, failed bool) error {
	_, s := b.want()
	if s.isEmpty() || f.skipped {
		return f.remove(ctx, b)
	}
	next, missing := f.resolve(ctx, b, s)
	if errors.Is(missing, dp.ErrNotRunning) {
		return missing
	}
	if next == nil {
		return errors.Join(missing, f.remove(ctx, b))
	}
	err := f.replace(ctx, b, next, failed)
	if errors.Is(err, dp.ErrNotFound) && !f.listedEndpoints {
		// An endpoint that was thought to exist is gone.
		if err := f.readEndpoints(ctx); err != nil {
			return err
		}
		next, missing = f.resolve(ctx, b, s)
		if errors.Is(missing, dp.ErrNotRunning) {
			return missing
		}
		if next == nil {
			return errors.Join(missing, f.remove(ctx, b))
		}
		err = f.replace(ctx, b, next, failed)
	}
	return errors.Join(missing, err)
}

// resolve returns the load balancer for a specification, nil if none of its endpoints can be used. The error is about
// those that cannot.
func (f *family) resolve(ctx context.Context, b *balancer, s *spec) (*dp.LoadBalancer, error) {
	lb := &dp.LoadBalancer{Key: b.key, TargetPort: s.targetPort, Distribution: s.distribution, Flags: s.flags,
		PortFlags: s.portFlags}
	var errs failures.List // there can be one for each of many endpoints
	var err error
	if lb.SourceVIP, err = f.sourceVIP(s.targets); err != nil {
		return nil, err
	}
	if s.root {
		if err := f.readRoot(ctx); err != nil {
			return nil, err
		}
		lb.Endpoints = []string{f.root}
	}
	for _, t := range s.targets {
		id, err := f.lookup(ctx, t)
		if errors.Is(err, dp.ErrNotRunning) {
			return nil, err
		}
		if err != nil {
			errs.Add(err)
			continue
		}
		lb.Endpoints = append(lb.Endpoints, id)
	}
	if len(lb.Endpoints) == 0 {
		return nil, errs.Err()
	}
	vip := ""
	if s.vip && f.isOverlay() {
		if vip, err = f.vipEndpoint(ctx, b.key.Addr); err != nil {
			errs.Add(err)
		}
	}
	f.setVIP(b, vip)
	return lb, errs.Err()
}

// readRoot looks for the endpoint of the node itself, once for all health checks.
func (f *family) readRoot(ctx context.Context) error {
	if f.root != "" {
		return nil
	}
	root, err := f.dataplane.EndpointByName(ctx, f.options.RootEndpoint)
	if err != nil {
		return fmt.Errorf("root endpoint %q: %w", f.options.RootEndpoint, err)
	}
	f.root = root.ID
	return nil
}

// replace changes a load balancer to next, in place where that is possible.
func (f *family) replace(ctx context.Context, b *balancer, next *dp.LoadBalancer, failed bool) error {
	if b.have == nil {
		return f.create(ctx, b, next)
	}
	if b.have.SameAs(next) {
		return nil
	}
	if f.features.ModifyLoadBalancer && b.have.SameButEndpoints(next) {
		next.ID = b.have.ID
		err := f.dataplane.UpdateLoadBalancer(ctx, *next)
		switch {
		case err == nil:
			f.setHave(b, next)
			return nil
		case errors.Is(err, dp.ErrNotSupported):
			klog.FromContext(ctx).Info("HNS cannot change load balancers in place, replacing them from now on",
				"err", err)
			f.features.ModifyLoadBalancer = false
		case errors.Is(err, dp.ErrNotFound) && !f.listedEndpoints:
			return err // the load balancer, or an endpoint: look
		case !errors.Is(err, dp.ErrNotFound):
			f.count(f.metrics.updates, b, err)
			if !failed || errors.Is(err, dp.ErrNotRunning) {
				// It still serves what it did. The next time it is replaced.
				return fmt.Errorf("update: %w", err)
			}
		}
	}
	if err := f.delete(ctx, b); err != nil {
		return err
	}
	return f.create(ctx, b, next)
}

func (f *family) create(ctx context.Context, b *balancer, next *dp.LoadBalancer) error {
	id, err := f.dataplane.CreateLoadBalancer(ctx, *next)
	if errors.Is(err, dp.ErrAlreadyExists) && !f.listedBalancers {
		// Somebody else has made one in the meantime, or HNS has restored one.
		if _, err := f.compare(ctx); err != nil {
			return err
		}
		if b.have != nil {
			return f.replace(ctx, b, next, false)
		}
	}
	if err != nil {
		f.count(f.metrics.creations, b, err)
		return fmt.Errorf("create: %w", err)
	}
	next.ID = id
	f.setHave(b, next)
	return nil
}

// remove deletes a load balancer that is not wanted.
func (f *family) remove(ctx context.Context, b *balancer) error {
	if err := f.delete(ctx, b); err != nil {
		return err
	}
	f.setVIP(b, "")
	return nil
}

// delete deletes a load balancer, if there is one.
func (f *family) delete(ctx context.Context, b *balancer) error {
	if b.have == nil {
		return nil
	}
	if err := f.dataplane.DeleteLoadBalancer(ctx, b.have.ID); err != nil && !errors.Is(err, dp.ErrNotFound) {
		f.count(f.metrics.deletions, b, err)
		return fmt.Errorf("delete: %w", err)
	}
	f.setHave(b, nil)
	return nil
}
