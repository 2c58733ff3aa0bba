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

	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// RefusedError is a service port whose rules iptables or the kernel refuses, because a match is missing, say. The service port
// is left out, and all others are in force. The next Sync tries again.
type RefusedError struct {
	Port model.PortName
	Err  error // as a rule a [*dataplane.RestoreError]
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("service port %v is left out, its rules are refused: %v", e.Port, e.Err)
}

// Unwrap returns why.
func (e *RefusedError) Unwrap() error { return e.Err }

// probeChain is where rules are tried out. Nothing leads there.
const probeChain = chainPrefix + "PROBE"

// maxProbes bounds how often one Sync tries rules out. When there have been so many, all that are still in doubt are left out.
const maxProbes = 40

// search looks for what a table was refused for. iptables-legacy does not tell where the kernel finds fault.
type search struct {
	*family
	left int
	// failed is why the search has to end: what was said of a try was nothing about its rules.
	failed error
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

// leaveOut finds out what was refused and puts all the rest in force. It returns an error in any case, unless it is only
// that the kernel has no match bpf.
func (f *family) leaveOut(ctx context.Context, err error) error {
	var refused *dp.RestoreError
	if !isAboutRules(err) || !errors.As(err, &refused) {
		return err
	}
	suspects := f.suspects()
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
		klog.FromContext(ctx).Info("The kernel has no match bpf: there are rules for single endpoints instead", "family", f.features.Family)
		f.withoutBPF()
		lost = true
	}
	// If the line is known, whose it is need not be searched for.
	i := slices.IndexFunc(suspects, func(p *port) bool {
		return refused.Text != "" && slices.ContainsFunc(f.allRules(p), func(rule string) bool {
			return strings.HasSuffix(refused.Text, " "+rule)
		})
	})
	var bad []*RefusedError
	if i >= 0 {
		bad = append(s.refused(ctx, suspects[i:i+1]), s.refused(ctx, slices.Concat(suspects[:i], suspects[i+1:]))...)
	} else {
		bad = s.refused(ctx, suspects)
	}
	if len(bad) == 0 && !lost || s.failed != nil || ctx.Err() != nil {
		return err
	}
	var errs []error
	changed := map[model.ServiceName]*described{}
	for _, p := range bad {
		f.refused[p.Port] = true
		changed[p.Port.Service] = f.described[p.Port.Service]
		errs = append(errs, p)
	}
	f.plan(ctx, changed)
	if err := f.apply(ctx); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// suspects returns the service ports that have rules in chains that were to change, by name.
func (f *family) suspects() []*port {
	var list []*port
	for _, name := range slices.SortedFunc(maps.Keys(f.services), model.ServiceName.Compare) {
		for _, p := range f.services[name] {
			if f.isTouched(p) {
				list = append(list, p)
			}
		}
	}
	return list
}

func (f *family) isTouched(p *port) bool {
	for _, c := range p.chains {
		if f.chainsOf(c).touched[c.name] {
			return true
		}
	}
	for i := range p.fronts {
		k := p.fronts[i].key
		for _, t := range []*tree{f.tree(k, p.fronts[i].masquerade), f.refuseTree(k)} {
			if n := t.top.leafFor(k); n != nil && n.isTouched() {
				return true
			}
		}
	}
	return false
}

// allRules returns the rules of a service port, in both tables.
func (f *family) allRules(p *port) []string { return slices.Concat(p.rules(false), p.rules(true)) }

// rules returns the rules of a service port in a table, wherever they are.
func (p *port) rules(filter bool) []string {
	var rules []string
	for i := range p.fronts {
		to := p.fronts[i].to
		if filter {
			to = p.fronts[i].refuse
		}
		if !to.isZero() {
			e := entry{p.fronts[i].key, p.Name, to}
			rules = e.rules(e.rules(rules, true), false)
		}
	}
	for _, c := range p.chains {
		if c.filter == filter {
			rules = append(rules, c.rules...)
		}
	}
	return rules
}

// refused returns those of the service ports whose rules are refused.
func (s *search) refused(ctx context.Context, ports []*port) []*RefusedError {
	if len(ports) == 0 || s.failed != nil || ctx.Err() != nil {
		return nil
	}
	var nat, filter []string
	for _, p := range ports {
		nat = append(nat, p.rules(false)...)
		filter = append(filter, p.rules(true)...)
	}
	err := s.try(ctx, nat, filter)
	if err == nil || s.failed != nil {
		return nil
	}
	if len(ports) == 1 || s.left <= 0 {
		var list []*RefusedError
		for _, p := range ports {
			list = append(list, &RefusedError{p.Name, err})
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
		try.Tables = append(try.Tables, dp.TableBatch{Table: t.table, Chains: []dp.Chain{{Name: probeChain, Rules: withoutJumps(t.rules)}}})
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
