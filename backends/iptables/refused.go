package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// probeChain is where rules are tried out. Nothing leads there.
const probeChain = chainPrefix + "PROBE"

// maxProbes bounds how often one Sync tries rules out. When there have been so many, all that are still in doubt are
// left out.
const maxProbes = 40

// search looks for what a table was refused for. iptables-legacy does not tell where the kernel finds fault.
type search struct {
	*family
	left int
	// failed is why the search has to end: a try failed for a reason unrelated to its rules.
	failed error
}

// candidate is a service port whose rules may be refused.
type candidate struct {
	change *frontend.PortChange
	port   *port
}

// isAboutRules tells whether an error of a restore may go away with a rule.
func isAboutRules(err error) bool {
	var refused *dp.RestoreError
	if !errors.As(err, &refused) {
		return false
	}
	var errno syscall.Errno   // the program could not be started
	var ended *exec.ExitError // killed, if it has no exit code
	if errors.As(err, &errno) || errors.As(err, &ended) && ended.ExitCode() < 0 {
		return false
	}
	return !slices.ContainsFunc([]error{dp.ErrLocked, dp.ErrNoTable, dp.ErrIncompatible, fs.ErrPermission, exec.ErrNotFound,
		context.Canceled, context.DeadlineExceeded}, func(e error) bool { return errors.Is(err, e) })
}

// leaveOut finds out what was refused, leaves that out and applies all the rest. What it leaves out is in
// family.leftOut.
func (f *family) leaveOut(ctx context.Context, c *frontend.Changes, err error) error {
	var refused *dp.RestoreError
	if !isAboutRules(err) || !errors.As(err, &refused) {
		return err
	}
	suspects := f.suspects(c)
	s := search{family: f, left: maxProbes}
	plain := []string{"-j RETURN"}
	if s.try(ctx, plain, nil) != nil {
		return err // whatever it is, it is nobody's rules
	}
	lost := false
	if !f.noBPF && s.try(ctx, []string{sameSource(f.features.Family) + " -j RETURN"}, nil) != nil {
		if s.try(ctx, plain, nil) != nil || s.failed != nil {
			return err
		}
		klog.FromContext(ctx).Info("The kernel has no match bpf: there are rules for single endpoints instead",
			"family", c.Family())
		f.withoutBPF(c)
		lost = true
	}
	// If the line is known, whose it is need not be searched for.
	i := slices.IndexFunc(suspects, func(p candidate) bool {
		return refused.Text != "" && slices.ContainsFunc(f.allRules(p), func(rule string) bool {
			return strings.HasSuffix(refused.Text, " "+rule)
		})
	})
	var bad []*sink.PortError
	if i >= 0 {
		bad = append(s.refused(ctx, suspects[i:i+1]), s.refused(ctx, slices.Concat(suspects[:i], suspects[i+1:]))...)
	} else {
		bad = s.refused(ctx, suspects)
	}
	if len(bad) == 0 && !lost || s.failed != nil || ctx.Err() != nil {
		return err
	}
	for _, e := range bad {
		f.leftOut[e.Port] = e
		if change, ok := c.Port(e.Port); ok {
			f.planPort(change)
		}
	}
	f.planBase()
	return f.write(ctx)
}

// tryLeftOut tries what was left out again: at a retry all of it, and otherwise the service ports that have changed.
func (f *family) tryLeftOut(ctx context.Context, c, changes *frontend.Changes) (taken []*frontend.PortChange) {
	if len(f.leftOut) == 0 {
		return nil
	}
	due := f.leftOut
	if !c.Retry() {
		due = map[model.PortName]*sink.PortError{}
		for p := range changes.Ports() {
			if name := nameOf(p); f.leftOut[name] != nil {
				due[name] = f.leftOut[name]
			}
		}
	}
	var candidates []candidate
	for _, name := range slices.SortedFunc(maps.Keys(due), model.PortName.Compare) {
		if change, ok := c.Port(name); ok {
			candidates = append(candidates, candidate{change, f.config.render(change, countFrontends(change))})
		} else {
			delete(f.leftOut, name)
		}
	}
	before, err := f.dataplane.Generation(ctx)
	s := search{family: f, left: maxProbes, failed: err}
	bad := s.refused(ctx, candidates)
	after, err := f.dataplane.Generation(ctx)
	if s.failed != nil || err != nil {
		return nil // nothing was learned
	}
	f.adopt(before, after)
	for _, p := range candidates {
		i := slices.IndexFunc(bad, func(e *sink.PortError) bool { return e.Port == p.port.name })
		if i >= 0 {
			f.leftOut[p.port.name] = bad[i]
			continue
		}
		delete(f.leftOut, p.port.name)
		taken = append(taken, p.change)
	}
	return taken
}

// joinLeftOut adds the errors of what is left out.
func (f *family) joinLeftOut(err error) error {
	errs := []error{err}
	for _, name := range slices.SortedFunc(maps.Keys(f.leftOut), model.PortName.Compare) {
		errs = append(errs, f.leftOut[name])
	}
	return errors.Join(errs...)
}

// suspects returns the service ports that have rules in chains that were to change, by name.
func (f *family) suspects(c *frontend.Changes) []candidate {
	owners := map[model.PortName]bool{}
	for _, t := range f.tables() {
		for name := range t.touched {
			if content := t.wanted[name]; content != nil {
				for _, owner := range content.owners() {
					owners[owner] = true
				}
			}
		}
	}
	var list []candidate
	for _, name := range slices.SortedFunc(maps.Keys(owners), model.PortName.Compare) {
		if change, ok := c.Port(name); ok {
			list = append(list, candidate{change, f.ports[name]})
		}
	}
	return list
}

// allRules returns the rules of a service port, in both tables.
func (f *family) allRules(p candidate) []string {
	return slices.Concat(f.config.rulesOf(p, false), f.config.rulesOf(p, true))
}

// rulesOf returns the rules of a service port in a table, wherever they are.
func (c *config) rulesOf(p candidate, filter bool) []string {
	var rules []string
	for fr := range p.change.Frontends() {
		t := p.port.traffic[classOf(fr)]
		to := t.to
		if filter {
			to = t.refuse
		}
		if !to.isZero() {
			e := entry{fr.Key, p.port.name, to}
			rules = e.rules(e.rules(rules, true), false)
		}
	}
	for _, own := range p.port.chains {
		if own.filter == filter {
			rules = append(rules, own.rules...)
		}
	}
	for i, s := range p.port.sets {
		if s.used && !filter {
			rules = append(rules, c.setRules(p.change.After, p.change.Endpoints(setOf(i)))...)
		}
	}
	return rules
}

// refused returns those of the service ports whose rules are refused.
func (s *search) refused(ctx context.Context, ports []candidate) []*sink.PortError {
	if len(ports) == 0 || s.failed != nil || ctx.Err() != nil {
		return nil
	}
	var nat, filter []string
	for _, p := range ports {
		nat = append(nat, s.config.rulesOf(p, false)...)
		filter = append(filter, s.config.rulesOf(p, true)...)
	}
	err := s.try(ctx, nat, filter)
	if err == nil || s.failed != nil {
		return nil
	}
	if len(ports) == 1 || s.left <= 0 {
		var list []*sink.PortError
		for _, p := range ports {
			list = append(list, &sink.PortError{Port: p.port.name, Family: s.features.Family,
				Err: fmt.Errorf("left out, its rules are refused: %w", err)})
		}
		return list
	}
	half := len(ports) / 2
	return append(s.refused(ctx, ports[:half]), s.refused(ctx, ports[half:])...)
}

// try tries rules out, where no packet comes by.
func (s *search) try(ctx context.Context, nat, filter []string) error {
	s.left--
	try := &dp.Batch{}
	undo := &dp.Batch{}
	for _, t := range []struct {
		table dp.Table
		rules []string
	}{{dp.NAT, nat}, {dp.Filter, filter}} {
		if len(t.rules) == 0 {
			continue
		}
		probe := dp.Chain{Name: probeChain, Rules: withoutJumps(t.rules)}
		try.Tables = append(try.Tables, dp.TableBatch{Table: t.table, Chains: []dp.Chain{probe}})
		undo.Tables = append(undo.Tables, dp.TableBatch{Table: t.table, Remove: []string{probeChain}})
	}
	err := s.dataplane.Restore(ctx, try)
	if err != nil && !isAboutRules(err) {
		s.failed = cmp.Or(s.failed, err)
	}
	if undoErr := s.dataplane.Restore(ctx, undo); undoErr != nil {
		klog.FromContext(ctx).V(2).Info("A chain for trying out rules is left until the next resync", "reason", undoErr)
	}
	return err
}

// withoutJumps returns rules that lead to none of our chains.
func withoutJumps(rules []string) []string {
	list := make([]string, 0, len(rules))
	for _, rule := range rules {
		if i := strings.LastIndex(rule, "-g "+chainPrefix); i >= 0 {
			rule = rule[:i] + "-j RETURN"
		}
		list = append(list, rule)
	}
	return list
}
