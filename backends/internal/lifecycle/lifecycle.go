// Package lifecycle is what all backends do alike from New to Close: they check options, open what these do not give,
// choose the families to serve, make a table of frontends, register metrics, repair in the background, clean up, and
// close what they have opened.
package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// DefaultMasqueradeMark is the default of the option MasqueradeMark.
const DefaultMasqueradeMark = 1 << 14

// Spec is what is specific to one backend. F is its state in one IP family.
type Spec[F any] struct {
	// Name is the prefix of the backend's errors, Common its options as far as all backends have them, and Invalid what
	// is wrong with the others.
	Name    string
	Common  frontend.Common
	Invalid error
	// MasqueradeMark is the option of that name, if the backend has it. It gets its default.
	MasqueradeMark *uint32

	// Open opens and checks what the backend needs, and adds its families. It calls the other methods of a Spec.
	Open func(context.Context, *Spec[F]) error
	// IsAbsent reports whether an error of a family may mean that the node does not have it. Nil: every error may.
	IsAbsent func(error) bool

	// Apply applies changes of a family: see [frontend.Options]. Extra and Sticky are the options of these names.
	Apply  func(F, context.Context, *frontend.Changes) error
	Extra  func(*model.Service) any
	Sticky frontend.StickyLimits
	// Check finds changes of a family by other programs, and repairs them: see [frontend.Table.Repair].
	Check func(F, context.Context, *frontend.Changes) (frontend.CheckResult, error)
	// Yield are asked how long the next Sync should wait: see [sink.Yielder].
	Yield []func() time.Duration
	// Every is how often to call Check, if it is positive, and Drift receive a value when there is something to check.
	Every time.Duration
	Drift []<-chan struct{}
	// Describe returns what a family's dataplane has for the ports of a service: see [frontend.Table.View].
	Describe func(F, model.ServiceName, *frontend.Changes, []*frontend.PortChange) string
	// Remove removes everything from a family's dataplane, and RemoveShared, if given, what the families share.
	Remove       func(F, context.Context) error
	RemoveShared func(context.Context) error

	// Families are the served families, and Metrics what is registered.
	Families map[model.Family]F
	Metrics  metrics.Group
	// NodePorts are the addresses of the host that serve node ports. Open may set them; by default they are those that
	// the options choose, without loopback addresses.
	NodePorts NodePorts

	order    []model.Family
	owned    []func() error // to call in the end
	trackers []*nodeaddr.Tracker
	wake     chan struct{} // receives a value when there is something to check

	onAddresses atomic.Pointer[func()]             // to call when the host's addresses have changed
	onRepair    atomic.Pointer[func(model.Family)] // to call after a repair
}

// open makes the Spec ready for use.
func (s *Spec[F]) open(ctx context.Context) error {
	s.Families, s.wake = map[model.Family]F{}, make(chan struct{}, 1)
	err := errors.Join(frontend.CheckFamilies(s.Common.Families), s.Common.NodePortAddresses.Validate(),
		s.Common.Limits.Validate(), s.Invalid)
	if mark := s.MasqueradeMark; mark != nil {
		if *mark = cmp.Or(*mark, DefaultMasqueradeMark); bits.OnesCount32(*mark) > 1 {
			err = errors.Join(err, fmt.Errorf("masqueradeMark: %#x must have exactly one bit set", *mark))
		}
	}
	if err == nil {
		err = withHint(s.Open(ctx, s))
	}
	return s.orClose(err)
}

// withHint adds to an error what to do about it, if that is known.
func withHint(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; is this process root with CAP_NET_ADMIN in its network namespace, or an administrator?", err)
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w; is the package that has this program installed?", err)
	}
	return err
}

// orClose returns nil, or an error after it has closed what has been opened.
func (s *Spec[F]) orClose(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("%s: %w", s.Name, err), s.close())
}

// Own makes the backend call a function when it is closed.
func (s *Spec[F]) Own(end func() error) { s.owned = append(s.owned, end) }

func (s *Spec[F]) close() error {
	var errs []error
	for _, end := range slices.Backward(s.owned) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// Default opens an option, of an interface type, that is not given. The backend closes only that, not one that it is
// given.
func Default[F any, T io.Closer](s *Spec[F], option *T, open func() (T, error)) error {
	if any(*option) != nil {
		return nil
	}
	opened, err := open()
	if err == nil {
		*option = opened
		s.Own(opened.Close)
	}
	return err
}

// Serve adds the families to serve, which open makes: those in the options or, if these are nil, IPv4, and IPv6 where
// the node has it.
func (s *Spec[F]) Serve(ctx context.Context, open func(model.Family) (F, error)) error {
	families := s.Common.Families
	if families == nil {
		families = model.Families()
	}
	for _, f := range families {
		family, err := open(f)
		switch optional := s.Common.Families == nil && f == model.IPv6; {
		case err == nil:
			s.Add(f, family)
		case optional && ctx.Err() == nil && (s.IsAbsent == nil || s.IsAbsent(err)):
			klog.FromContext(ctx).Info("Serving IPv4 only: this node does not support IPv6", "reason", err)
		default:
			return err
		}
	}
	return nil
}

// Add adds a family.
func (s *Spec[F]) Add(f model.Family, family F) {
	s.Families[f] = family
	s.order = append(s.order, f)
}

// Follow returns addresses of a host, by default this one, that are kept up to date while the backend runs. The backend
// calls Look when they change.
func (s *Spec[F]) Follow(o nodeaddr.Options) (*nodeaddr.Tracker, error) {
	o.Changed = func(nodeaddr.Addresses) { s.addressesChanged() }
	host, err := s.hostOr(o.Host)
	if err != nil {
		return nil, err
	}
	o.Host = host
	t, err := nodeaddr.NewTracker(o)
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	s.trackers = append(s.trackers, t)
	return t, nil
}

// notify makes the backend call Look.
func (s *Spec[F]) notify() {
	select {
	case s.wake <- struct{}{}:
	default: // it is about to do so anyway
	}
}

// Running is a backend from New to Close.
type Running struct {
	// Table has the methods of the sink, and keeps what Sync has to apply.
	*frontend.Table

	describe func(model.ServiceName, *frontend.Changes, []*frontend.PortChange) string
	yield    []func() time.Duration
	remove   func(context.Context) error
	changed  *atomic.Pointer[func()]
	repaired *atomic.Pointer[func(model.Family)]
	hostIPs  *nodeaddr.Tracker
	stop     context.CancelFunc
	wg       sync.WaitGroup
	close    func() error
}

var _ frontend.Backend = (*Running)(nil)

// Start opens the backend, and repairs in the background until ctx ends or the backend is closed.
func (s *Spec[F]) Start(ctx context.Context) (*Running, error) {
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	if err := s.followNodePorts(); err != nil {
		return nil, s.orClose(err)
	}
	table, err := frontend.New(frontend.Options{Families: s.order, OnProblem: s.Common.OnProblem, Extra: s.Extra,
		Limits: s.Common.Limits, Sticky: s.Sticky, NodePortAddresses: s.NodePorts.of,
		OnRepair: func(family model.Family) {
			if f := s.onRepair.Load(); f != nil {
				(*f)(family)
			}
		},
		Apply: func(ctx context.Context, c *frontend.Changes) error {
			return withHint(s.Apply(s.Families[c.Family()], ctx, c))
		}})
	if err != nil {
		return nil, s.orClose(err)
	}
	unregister, err := s.Metrics.Register(s.Common.Metrics)
	if err != nil {
		return nil, s.orClose(err)
	}
	s.Own(func() error { unregister(); return nil })
	r := &Running{Table: table, remove: s.remove, changed: &s.onAddresses, repaired: &s.onRepair, yield: s.Yield,
		hostIPs: s.NodePorts.Tracker, close: sync.OnceValue(s.close),
		describe: func(name model.ServiceName, c *frontend.Changes, ports []*frontend.PortChange) string {
			return s.Describe(s.Families[c.Family()], name, c, ports)
		}}
	check := func(ctx context.Context, c *frontend.Changes) (frontend.CheckResult, error) {
		return s.Check(s.Families[c.Family()], ctx, c)
	}
	ctx, r.stop = context.WithCancel(ctx)
	for _, t := range s.trackers {
		r.wg.Go(func() { _ = t.Run(ctx) })
	}
	for _, drift := range s.Drift {
		r.wg.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case <-drift:
					s.notify()
				}
			}
		})
	}
	r.wg.Go(func() { r.Repair(ctx, s.Every, s.wake, check) })
	return r, nil
}

// OnAddresses implements [frontend.Backend].
func (r *Running) OnAddresses(changed func()) { r.changed.Store(&changed) }

// OnRepair implements [frontend.Backend].
func (r *Running) OnRepair(repaired func(model.Family)) { r.repaired.Store(&repaired) }

// NodePortAddresses implements [frontend.Backend].
func (r *Running) NodePortAddresses() nodeaddr.Addresses { return r.hostIPs.Addresses() }

// Yield implements [sink.Yielder].
func (r *Running) Yield() (wait time.Duration) {
	for _, yield := range r.yield {
		wait = max(wait, yield())
	}
	return wait
}

// DescribeService implements [sink.Describer]. It waits for a Sync in progress.
func (r *Running) DescribeService(_ context.Context, name model.ServiceName) (string, error) {
	var text strings.Builder
	r.View(name, func(c *frontend.Changes, ports []*frontend.PortChange) {
		text.WriteString(r.describe(name, c, ports))
	})
	return text.String(), nil
}

// CleanUp implements [frontend.Backend].
func (r *Running) CleanUp(ctx context.Context) error { return r.Table.CleanUp(ctx, r.remove) }

// Close implements [frontend.Backend].
func (r *Running) Close() error {
	r.stop()
	r.wg.Wait()
	return r.close()
}

// CleanUp opens the backend, removes everything that it has applied, and closes it.
func (s *Spec[F]) CleanUp(ctx context.Context) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	return errors.Join(s.remove(ctx), s.close())
}

func (s *Spec[F]) remove(ctx context.Context) error {
	var errs []error
	for _, f := range s.order {
		if err := s.Remove(s.Families[f], ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: cleaning up %v: %w", s.Name, f, withHint(err)))
		}
	}
	if s.RemoveShared != nil {
		if err := s.RemoveShared(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: cleaning up: %w", s.Name, err))
		}
	}
	return errors.Join(errs...)
}
