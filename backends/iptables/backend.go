package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/lifecycle"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Backend is a [frontend.Backend], which documents its methods. Sync applies services with iptables.
//
// The error of Sync is a [*sink.FamilyError] for each family that is not served as wanted, with a [*sink.PortError]
// for each service port whose rules iptables or the kernel refuses, for example because a match is missing. Such a
// service port is left out. It is tried again when it changes, and at the next retry or resync.
//
// DescribeService returns the rules of a service as iptables-save prints them, for each family, but of chains that it
// shares only those that packets for the service match. The rules are those that the backend applies; they are not read
// from the kernel.
//
// CleanUp removes the backend's chains and the jumps to them. Existing connections keep their endpoints; new ones are
// no longer served.
type Backend struct {
	*running

	options  Options
	kernel   *kernel
	families map[model.Family]*family // guarded by the table
}

type running = lifecycle.Running

// New finds the programs that the backend needs, and returns the backend. It changes nothing until the first Sync. When
// other programs change its chains, it repairs them, in the background, until ctx ends or Close is called; it logs to
// ctx's logger. ctx does not bound calls of Sync.
func New(ctx context.Context, o Options) (*Backend, error) {
	b := &Backend{options: o, kernel: newKernel(o.Sysctls)}
	s := &lifecycle.Spec[*family]{Name: "iptables", Common: o.Common, MasqueradeMark: &b.options.MasqueradeMark,
		Open: b.open, IsAbsent: dp.IsAbsent, Apply: (*family).apply, Sticky: StickyLimits(), Check: (*family).check,
		Every: cmp.Or(o.driftInterval, defaultDriftInterval), Describe: (*family).describeService, Remove: (*family).cleanUp,
		RemoveShared: b.removeCounters}
	var err error
	if b.running, err = s.Start(ctx); err != nil {
		return nil, err
	}
	b.families = s.Families
	return b, nil
}

// open opens the families in the options or, if there are none, those that the machine supports.
func (b *Backend) open(ctx context.Context, s *lifecycle.Spec[*family]) error {
	addCounted(&s.Metrics, s.Families)
	for _, d := range b.options.Dataplanes {
		f := d.Features().Family
		if s.Families[f] != nil {
			return fmt.Errorf("dataplanes: duplicate family %v", f)
		}
		s.Add(f, newFamily(b, d, &s.Metrics))
		s.UseHostOf(d)
		s.Yield = append(s.Yield, d.Yield)
	}
	if len(b.options.Dataplanes) > 0 {
		return nil
	}
	return s.Serve(ctx, func(f model.Family) (*family, error) {
		d, err := dp.New(ctx, dp.Options{Family: f, Variant: b.options.variant})
		if err != nil {
			return nil, err
		}
		s.Own(d.Close)
		s.Yield = append(s.Yield, d.Yield)
		return newFamily(b, d, &s.Metrics), nil
	})
}

// cleanUp removes all chains of the family, and the jumps to them.
func (f *family) cleanUp(ctx context.Context) error {
	f.state = unknown
	err := cleanUp(ctx, f.dataplane)
	if err == nil {
		f.metrics.applied(dp.NAT, 0)
		f.metrics.applied(dp.Filter, 0)
	}
	return err
}

// CleanUp removes the chains of a backend that is not running: of o only Families and Dataplanes matter. Without
// Dataplanes it does so in both variants, as far as their programs are installed. Missing chains are not an error. A
// table that cannot be read is, and a chain that is only emptied, because others jump to it; the error is returned
// after the rest has been cleaned up.
func CleanUp(ctx context.Context, o Options) error {
	err := frontend.CheckFamilies(o.Families)
	if err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	var opened []dp.Interface
	if len(o.Dataplanes) == 0 {
		opened, err = dp.OpenInUse(ctx, o.Families, o.variant)
	}
	all := slices.Concat(o.Dataplanes, opened)
	for _, d := range all {
		err = errors.Join(err, cleanUp(ctx, d))
	}
	for _, d := range all { // the families share them
		err = errors.Join(err, removeCounters(d))
	}
	for _, d := range opened {
		err = errors.Join(err, d.Close())
	}
	if err != nil {
		return fmt.Errorf("iptables: cleaning up: %w", err)
	}
	return nil
}
