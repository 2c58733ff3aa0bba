package nft

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Backend is a [sink.Sink] whose Sync puts services in force with nftables. It is also a [sink.NodeSetter] and a
// [sink.Resyncer]. Its methods are called from one goroutine at a time, as those of every sink, except Close and CleanUp,
// which may be called from any.
type Backend struct {
	*sink.FullState

	options   Options
	dataplane dp.Interface
	owned     bool // the dataplane is the backend's own to close

	mu       sync.Mutex
	families []*family
	latest   *sink.Snapshot // to repair to

	stop  context.CancelFunc
	done  chan struct{}
	close func() error
}

var (
	_ sink.Sink       = (*Backend)(nil)
	_ sink.NodeSetter = (*Backend)(nil)
	_ sink.Resyncer   = (*Backend)(nil)
)

// New returns a backend, after it has found out that the kernel can do what it needs. It changes nothing until the first
// Sync. When others change its tables it repairs them at once, in the background, until ctx ends or Close is called;
// it logs with ctx's logger. ctx does not bound calls of Sync.
func New(ctx context.Context, o Options) (*Backend, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("nft: %w", err)
	}
	b := &Backend{options: o.withDefaults(), dataplane: o.Dataplane, done: make(chan struct{})}
	if b.dataplane == nil {
		n, err := dp.NewNetlink()
		if err != nil {
			return nil, fmt.Errorf("nft: %w", err)
		}
		b.dataplane, b.owned = n, true
	}
	if err := b.chooseFamilies(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("nft: %w", err), b.closeDataplane())
	}
	var families []model.Family
	for _, f := range b.families {
		families = append(families, f.key.Family)
	}
	metrics := newMetrics(families)
	for _, f := range b.families {
		f.metrics = metrics
	}
	unregister, err := metrics.Register(o.Metrics)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nft: %w", err), b.closeDataplane())
	}
	b.close = sync.OnceValue(func() error {
		unregister()
		return b.closeDataplane()
	})
	b.FullState = sink.NewFullState(b.sync)
	ctx, b.stop = context.WithCancel(ctx)
	go b.repair(ctx)
	return b, nil
}

// chooseFamilies makes the families that are asked for or, if none is, those that the kernel can do.
func (b *Backend) chooseFamilies(ctx context.Context) error {
	families := b.options.Families
	if families == nil {
		all := model.Families()
		families = all[:]
	}
	for _, f := range families {
		if err := probe(ctx, b.dataplane, f, &b.options); err != nil {
			if b.options.Families == nil && f == model.IPv6 && ctx.Err() == nil {
				klog.FromContext(ctx).Info("Serving IPv4 only, the kernel cannot do IPv6", "reason", err)
				continue
			}
			return err
		}
		b.families = append(b.families, &family{dataplane: b.dataplane, options: &b.options,
			key: dp.TableKey{Family: f, Name: b.options.TableName}, state: newState(0)})
	}
	return nil
}

// sync is the callback of the full state.
func (b *Backend) sync(ctx context.Context, s *sink.Snapshot) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.latest = s
	var errs []error
	for _, f := range b.families {
		if s.FullResyncOf(f.key.Family) {
			f.inForce = nil
		}
		if f.failed == nil || f.inForce != nil || s.RetryDue() {
			f.failed = f.sync(ctx, s)
		} // otherwise it has to be compared as a whole, which the retry is for
		if f.failed != nil {
			errs = append(errs, &sink.FamilyError{Family: f.key.Family, Err: fmt.Errorf("nft: %w", f.failed)})
		}
	}
	if err := ctx.Err(); err != nil && len(errs) > 0 {
		for _, f := range b.families {
			f.failed = nil // it has merely not been done
		}
		return err
	}
	return errors.Join(errs...)
}

// The pauses between attempts to repair a table that somebody else keeps changing, or that cannot be repaired.
const (
	minRepairPause = 100 * time.Millisecond
	maxRepairPause = 30 * time.Second
)

// repair puts back what somebody else changes in the tables. A failure is tried again, here and by whoever calls Sync.
func (b *Backend) repair(ctx context.Context) {
	defer close(b.done)
	pause, last := minRepairPause, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.dataplane.Drift():
		}
		for {
			if time.Since(last) > 10*pause {
				pause = minRepairPause
			} else {
				select {
				case <-ctx.Done():
					return
				case <-time.After(pause):
				}
				pause = min(2*pause, maxRepairPause)
			}
			err := b.repairOnce(ctx)
			last = time.Now()
			if err == nil || ctx.Err() != nil {
				break
			}
			klog.FromContext(ctx).Error(err, "Repairing what was changed by somebody else")
		}
	}
}

func (b *Backend) repairOnce(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.latest == nil {
		return nil // nothing is ours yet, or any more
	}
	var errs []error
	for _, f := range b.families {
		if !b.dataplane.Drifted(f.key) && !(f.unrepaired && f.inForce == nil) {
			continue
		}
		err := f.sync(ctx, b.latest)
		if f.unrepaired = err != nil; err != nil {
			errs = append(errs, err)
			continue
		}
		klog.FromContext(ctx).Info("Repaired a table that somebody else had changed", "table", f.key)
	}
	return errors.Join(errs...)
}

// CleanUp deletes the backend's tables. Flows that are under way keep their endpoints; for new ones services end. A later
// Sync that has something to do puts everything in force again.
func (b *Backend) CleanUp(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.latest = nil
	var errs []error
	for _, f := range b.families {
		if err := f.cleanUp(ctx); err != nil {
			errs = append(errs, fmt.Errorf("nft: cleaning up: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Close ends the repairs and releases what the backend holds. The tables stay in force. Call no other method after it; a
// second Close does nothing.
func (b *Backend) Close() error {
	b.stop()
	<-b.done
	return b.close()
}

func (b *Backend) closeDataplane() error {
	if !b.owned {
		return nil
	}
	return b.dataplane.Close()
}

// CleanUp deletes the tables of a backend that is not running, whatever is in them: of o only TableName, Families and
// Dataplane matter. That there are none is no error.
func CleanUp(ctx context.Context, o Options) error {
	o.Metrics = nil
	b, err := New(ctx, o)
	if err != nil {
		return err
	}
	return errors.Join(b.CleanUp(ctx), b.Close())
}
