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

// probeChain is where rules are tried out. Nothing jumps there.
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
	return !slices.ContainsFunc([]error{dp.ErrLocked, dp.ErrNoTable, dp.ErrIncompatible, fs.ErrPermission,
		exec.ErrNotFound, context.Canceled, context.DeadlineExceeded}, func(e error) bool { return errors.Is(err, e) })
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
	plain := [2][]string{inNAT: {"-j RETURN"}}
	if s.try(ctx, plain) != nil {
		return err // whatever it is, it is nobody's rules
	}
	lost := false
	if !f.noBPF && s.try(ctx, [2][]string{inNAT: {sameSource(f.features.Family) + "-j RETURN"}}) != nil {
		if s.try(ctx, plain) != nil || s.failed != nil {
			return err
		}
		klog.FromContext(ctx).Info("The kernel has no match bpf: there are rules for single endpoints instead",
			"family", c.Family())
		f.withoutBPF(c)
		lost = true
	}
	// If the line is known, whose it is need not be searched for.
	known := 0
	i := slices.IndexFunc(suspects, func(p candidate) bool {
		rules := f.config.rulesOf(p)
		return refused.Text != "" && slices.ContainsFunc(slices.Concat(rules[:]...), func(rule string) bool {
			return strings.HasSuffix(refused.Text, " "+rule)
		})
	})
	if i >= 0 {
		suspects[0], suspects[i], known = suspects[i], suspects[0], 1
	}
	bad := append(s.refused(ctx, suspects[:known]), s.refused(ctx, suspects[known:])...)
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

// tryLeftOut tries what was left out again: at a retry all of it, and otherwise the service ports that have changed. It
// returns those that are not left out any more.
func (f *family) tryLeftOut(ctx context.Context, c, changes *frontend.Changes) (taken []*frontend.PortChange) {
	if len(f.leftOut) == 0 {
		return nil
	}
	changed := map[model.PortName]bool{}
	for p := range changes.Ports() {
		changed[nameOf(p)] = true
	}
	var candidates []candidate
	for _, name := range slices.SortedFunc(maps.Keys(f.leftOut), model.PortName.Compare) {
		if change, ok := c.Port(name); !ok {
			delete(f.leftOut, name)
		} else if c.Retry() || changed[name] {
			candidates = append(candidates, candidate{change, f.config.render(change, countFrontends(change))})
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
				for owner := range content.owners() {
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

// rulesOf returns the rules of a service port in each table, wherever they are.
func (c *config) rulesOf(p candidate) (rules [2][]string) {
	for fr := range p.change.Frontends() {
		t := p.port.traffic[classOf(fr)]
		for i, to := range [2]target{inNAT: t.to, inFilter: t.refuse} {
			if !to.isZero() {
				e := entry{fr.Key, p.port.name, to}
				rules[i] = e.rules(e.rules(rules[i], true), false)
			}
		}
	}
	for _, own := range p.port.chains {
		rules[own.table] = append(rules[own.table], own.rules...)
	}
	for i, s := range p.port.sets {
		if s.size > 0 {
			rules[inNAT] = append(rules[inNAT], c.setRules(p.change.After, p.change.Endpoints(setOf(i)))...)
		}
	}
	return rules
}

// refused returns those of the service ports whose rules are refused.
func (s *search) refused(ctx context.Context, ports []candidate) []*sink.PortError {
	if len(ports) == 0 || s.failed != nil || ctx.Err() != nil {
		return nil
	}
	var rules [2][]string
	for _, p := range ports {
		for i, more := range s.config.rulesOf(p) {
			rules[i] = append(rules[i], more...)
		}
	}
	err := s.try(ctx, rules)
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
func (s *search) try(ctx context.Context, rules [2][]string) error {
	s.left--
	try := &dp.Batch{}
	undo := &dp.Batch{}
	for i, c := range s.tables() {
		if len(rules[i]) > 0 {
			probe := dp.Chain{Name: probeChain, Rules: withoutJumps(rules[i])}
			try.Tables = append(try.Tables, dp.TableBatch{Table: c.table, Chains: []dp.Chain{probe}})
			undo.Tables = append(undo.Tables, dp.TableBatch{Table: c.table, Remove: []string{probeChain}})
		}
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

// withoutJumps returns rules that jump to none of our chains.
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
