package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// commit applies the wanted state. It calls refuse for each load balancer of a service port that fails, which is tried
// again when the port is delivered again. What fails without refuse, and deletions, are left to the next commit. Its
// error concerns all load balancers. It stops when HNS is not running.
func (f *family) commit(ctx context.Context, refuse func(model.PortName, error)) error {
	defer func() {
		f.readNet, f.listedBalancers, f.listedEndpoints = false, false, false
		f.refused, f.root = map[netip.Addr]error{}, ""
		for _, b := range f.failed {
			f.dirty[b] = true
		}
		f.failed = nil
	}()
	// Meanwhile HNS may report further differences.
	for range 3 {
		f.followReplaced()
		due := slices.SortedFunc(maps.Keys(f.dirty), func(a, b *balancer) int { return a.key.Compare(b.key) })
		if len(due) == 0 {
			break
		}
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
		if err := f.putAll(ctx, due, refuse); err != nil {
			return err
		}
	}
	// Other failures are logged, and tried again.
	if err := f.deleteUnused(ctx); endsCommit(err) {
		return err
	}
	return nil
}

// unreadable is an error of a listing, which says nothing about what there is, or of a network that is gone.
type unreadable struct{ error }

func (u unreadable) Unwrap() error { return u.error }

// endsCommit reports whether an error is not about one load balancer or endpoint: all others would fail, too, or
// nothing is known about them.
func endsCommit(err error) bool {
	var u unreadable
	return errors.Is(err, dp.ErrNotRunning) || errors.As(err, &u)
}

// followReplaced makes the load balancers due that have an endpoint that was replaced.
func (f *family) followReplaced() {
	replaced := f.endpoints.replaced
	if len(replaced) == 0 {
		return
	}
	for _, b := range f.balancers {
		if b.have != nil && slices.ContainsFunc(b.have.Endpoints, func(id string) bool { return replaced[id] }) ||
			replaced[b.vip] {
			f.dirty[b] = true
		}
	}
	clear(replaced)
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

// putAll applies the load balancers that are due.
func (f *family) putAll(ctx context.Context, due []*balancer, refuse func(model.PortName, error)) error {
	var gone []dp.Key
	var err error
	var undeleted failures.List
	for _, b := range due {
		if err = ctx.Err(); err != nil {
			break
		}
		before := b.err
		b.err = f.put(ctx, b, before != nil)
		if endsCommit(b.err) {
			err = fmt.Errorf("%v: %w", b.key, b.err)
			break
		}
		delete(f.dirty, b)
		if b.err != nil {
			failure := fmt.Errorf("%v: %w", b.key, b.err)
			if owner, s := b.want(); s != nil && refuse != nil {
				refuse(owner, failure)
				continue
			} else if s == nil && before == nil {
				undeleted.Add(failure)
			}
			f.failed = append(f.failed, b)
			continue
		}
		if len(b.asked) == 0 {
			delete(f.balancers, b.key)
		}
		if b.have == nil {
			gone = append(gone, b.key)
		}
	}
	if err := undeleted.Err(); err != nil && f.undeleted.Due(err.Error(), time.Now()) {
		klog.FromContext(ctx).Error(err, "Could not delete load balancers; trying again later")
	}
	return errors.Join(err, f.record.change(nil, gone)) // also of what was done before ctx ended
}

// put applies one load balancer. failed: it has failed before.
func (f *family) put(ctx context.Context, b *balancer, failed bool) error {
	_, s := b.want()
	if s.isEmpty() || f.skipped {
		return f.remove(ctx, b)
	}
	for {
		next, missing, err := f.resolve(ctx, b, s)
		if err != nil {
			return err
		}
		if next == nil {
			return errors.Join(missing, f.remove(ctx, b))
		}
		err = f.replace(ctx, b, next, failed)
		if !errors.Is(err, dp.ErrNotFound) || endsCommit(err) || f.listedEndpoints {
			return errors.Join(missing, err)
		}
		// An endpoint that was thought to exist is gone.
		if err := f.readEndpoints(ctx); err != nil {
			return err
		}
	}
}

// resolve returns the load balancer for a specification, nil if none of its endpoints can be used; missing is about
// those that cannot. With err it is not known what the load balancer should be: it stays as it is.
func (f *family) resolve(ctx context.Context, b *balancer, s *spec) (lb *dp.LoadBalancer, missing, err error) {
	lb = &dp.LoadBalancer{Key: b.key, TargetPort: s.targetPort, Distribution: s.distribution, Flags: s.flags,
		PortFlags: s.portFlags}
	var errs failures.List // there can be one for each of many endpoints
	if lb.SourceVIP, err = f.sourceVIP(s.targets); err != nil {
		return nil, nil, err
	}
	if s.root {
		switch err := f.readRoot(ctx); {
		case errors.Is(err, dp.ErrNotFound):
			return nil, err, nil
		case err != nil:
			return nil, nil, err
		}
		lb.Endpoints = []string{f.root}
	}
	for _, t := range s.targets {
		id, err := f.lookup(ctx, t)
		switch {
		case endsCommit(err):
			return nil, nil, err
		case err != nil:
			errs.Add(err)
		default:
			lb.Endpoints = append(lb.Endpoints, id)
		}
	}
	if len(lb.Endpoints) == 0 {
		return nil, errs.Err(), nil
	}
	if s.vip && f.isOverlay() {
		vip, err := f.vipEndpoint(ctx, b.key.Addr)
		switch {
		case endsCommit(err):
			return nil, nil, err
		case err != nil:
			errs.Add(err)
		default:
			f.setVIP(b, vip)
		}
	}
	return lb, errs.Err(), nil
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
	have := b.have
	if settingsOf(have) == f.alteredFrom(next) {
		have = settingsOf(next).of(*have)
	}
	if have.SameAs(next) {
		return nil
	}
	if f.features.ModifyLoadBalancer && have.SameButEndpoints(next) {
		next.ID = b.have.ID
		err := f.dataplane.UpdateLoadBalancer(ctx, *next)
		switch {
		case err == nil:
			f.setHave(b, f.made(next, next.ID, f.alteredFrom(next)))
			return nil
		case errors.Is(err, dp.ErrNotSupported):
			klog.FromContext(ctx).Info("HNS cannot change load balancers in place; replacing them from now on",
				"err", err)
			f.features.ModifyLoadBalancer = false
		case errors.Is(err, dp.ErrNotFound) && !f.listedEndpoints:
			return err // the load balancer or an endpoint is gone: find out which
		case !errors.Is(err, dp.ErrNotFound):
			f.count(f.metrics.updates, b, err)
			if !failed || endsCommit(err) {
				// It still serves what it did. The next attempt replaces it.
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
	made, err := f.dataplane.CreateLoadBalancer(ctx, *next)
	if errors.Is(err, dp.ErrAlreadyExists) && !f.listedBalancers {
		// Another program has created one in the meantime, or HNS has restored one.
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
	f.setHave(b, f.made(next, made.ID, settingsOf(&made)))
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
