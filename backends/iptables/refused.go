package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// probeChain is the chain in which rules are tried out. Nothing jumps to it.
const probeChain = chainPrefix + "PROBE"

// maxProbes bounds how often one Sync tries out rules. After that all remaining suspects are left out, and the next
// Sync continues.
const maxProbes = 40

// search finds the rules for which a table was refused. iptables-legacy does not say which rule the kernel rejects.
type search struct {
	*plan
	dataplane dp.Interface
	left      int
	refused   []refusal // what was found
	// failed is why the search has to end: a try failed for a reason unrelated to its rules.
	failed error
}

// refusal is why the rules of a service port are refused. If they were refused together with those of other ports, this
// one may not be at fault.
type refusal struct {
	port    *frontend.PortChange
	err     error
	inDoubt bool
}

// isAboutRules reports whether the error of a restore may go away if a rule is left out.
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

// leaveOut finds out which service ports were refused, and applies the rest.
func (f *family) leaveOut(ctx context.Context, c *frontend.Changes, err error) error {
	if !isAboutRules(err) {
		return err
	}
	suspects := f.suspects(c)
	s := f.newSearch()
	if s.try(ctx, trial("")) != nil {
		return err // no service port's rules are at fault
	}
	lost := f.loseMatches(ctx, s, c)
	if s.failed != nil {
		return err
	}
	s.find(ctx, suspects)
	if len(s.refused) == 0 && !lost || s.failed != nil || ctx.Err() != nil {
		return err
	}
	s.refuse()
	for _, p := range suspects {
		f.setPort(p)
	}
	f.setBase()
	return f.unlessInUse(ctx, f.write(ctx))
}

// loseMatches reports whether matches are missing that the base chains can do without, and plans to do so.
func (f *family) loseMatches(ctx context.Context, s *search, c *frontend.Changes) bool {
	refuses := func(matches ...string) bool {
		return len(matches) > 0 && s.try(ctx, trial(matches...)) != nil && s.failed == nil
	}
	var bpf, counting []string
	if !f.noBPF {
		bpf = []string{sameSource(f.features.Family)}
	}
	f.ensureCounters(ctx) // one that was removed is not a match that is missing
	if !f.noCounting {
		counting = []string{dp.CountWith(invalidDropped)}
	}
	if !refuses(append(bpf, counting...)...) {
		return false
	}
	noBPF, noCounting := refuses(bpf...), refuses(counting...)
	if err := s.try(ctx, trial("")); err != nil {
		s.failed = cmp.Or(s.failed, err) // nothing works any more
		return false
	}
	logger := klog.FromContext(ctx)
	if noBPF {
		logger.Info("The kernel lacks the bpf match: using a rule for each endpoint instead", "family", c.Family())
		f.noBPF = true
		f.setHairpins(c.All().Hairpins())
	}
	if noCounting {
		logger.Info("The kernel lacks the nfacct match: dropped and accepted packets are not counted",
			"family", c.Family())
		f.setCounting(false)
	}
	return noBPF || noCounting
}

// trial returns rules to try, one for each match. "" matches everything: that rule works if any does.
func trial(matches ...string) (rules [2][]string) {
	for _, m := range matches {
		rules[inNAT] = append(rules[inNAT], m+"-j RETURN")
	}
	return rules
}

func (f *family) newSearch() *search {
	return &search{plan: f.plan, dataplane: f.dataplane, left: maxProbes}
}

// refuse tells the table what was found.
func (s *search) refuse() {
	for _, r := range s.refused {
		if r.inDoubt {
			r.port.RefuseInDoubt(nil, r.err)
		} else {
			r.port.Refuse(nil, r.err)
		}
	}
}

// retryRefused tries the service ports that were refused and are delivered again, or refuses them again without a try.
func (f *family) retryRefused(ctx context.Context, changes *frontend.Changes, try bool) {
	var ports []*frontend.PortChange
	for p := range changes.Ports() {
		if p.After != nil && p.Refused() != nil {
			ports = append(ports, p)
			p.RefuseAgain()
		}
	}
	if !try || len(ports) == 0 {
		return
	}
	before, err := f.dataplane.Generation(ctx)
	s := f.newSearch()
	s.failed = err
	s.find(ctx, byProtocol(ports))
	after, err := f.dataplane.Generation(ctx)
	if s.failed != nil || err != nil {
		return // nothing was learned
	}
	f.adopt(before, after)
	for _, p := range ports {
		p.Accept()
	}
	s.refuse()
}

// suspects returns the service ports that have rules in chains that were to change.
func (p *plan) suspects(c *frontend.Changes) (list []*frontend.PortChange) {
	owners := map[model.PortName]bool{}
	for _, t := range p.tables {
		for name := range t.touched {
			if content := t.wanted[name]; content != nil {
				for owner := range content.owners() {
					owners[owner] = true
				}
			}
		}
	}
	for name := range owners {
		if change := c.Port(name); change != nil {
			list = append(list, change)
		}
	}
	return byProtocol(list)
}

// byProtocol groups service ports by protocol, in a fixed order.
func byProtocol(list []*frontend.PortChange) []*frontend.PortChange {
	slices.SortFunc(list, func(a, b *frontend.PortChange) int {
		return cmp.Or(cmp.Compare(a.Name().Protocol, b.Name().Protocol), a.Name().Compare(b.Name()))
	})
	return list
}

// rulesOf returns the rules of a service port in each table, from all chains.
func (c *config) rulesOf(change *frontend.PortChange) (rules [2][]string) {
	p := c.render(change)
	for fr := range change.Frontends() {
		for i, to := range p.traffic[fr.Kind].to {
			if !to.isZero() {
				e := entry{fr.Key, p.name, to}
				rules[i] = e.rules(e.rules(rules[i], true), false)
			}
		}
	}
	for _, own := range p.chains {
		rules[own.table] = append(rules[own.table], own.rules...)
	}
	for i, s := range p.sets {
		if s.chain != "" {
			rules[inNAT] = append(rules[inNAT], c.setRules(change.After, change.Endpoints(frontend.RouteSets()[i]))...)
		}
	}
	return rules
}

// find finds those of the service ports whose rules are refused.
func (s *search) find(ctx context.Context, ports []*frontend.PortChange) {
	if len(ports) == 0 || s.failed != nil || ctx.Err() != nil {
		return
	}
	var rules [2][]string
	for _, p := range ports {
		for i, more := range s.config.rulesOf(p) {
			rules[i] = append(rules[i], more...)
		}
	}
	err := s.try(ctx, rules)
	if err == nil || s.failed != nil {
		return
	}
	if len(ports) == 1 || s.left <= 0 {
		err = fmt.Errorf("the kernel refuses its rules: %w", err)
		for _, p := range ports {
			s.refused = append(s.refused, refusal{p, err, len(ports) > 1})
		}
		return
	}
	// A protocol that the kernel lacks is found at once.
	first := ports[0].Name().Protocol
	half := slices.IndexFunc(ports, func(p *frontend.PortChange) bool { return p.Name().Protocol != first })
	if half < 0 {
		half = len(ports) / 2
	}
	s.find(ctx, ports[:half])
	s.find(ctx, ports[half:])
}

// try tries out rules in a chain that no packet reaches. The next write removes them.
func (s *search) try(ctx context.Context, rules [2][]string) error {
	s.left--
	b := &dp.Batch{}
	for i, c := range s.tables {
		if len(rules[i]) > 0 {
			probe := dp.Chain{Name: probeChain, Rules: withoutJumps(rules[i])}
			b.Tables = append(b.Tables, dp.TableBatch{Table: c.table, Chains: []dp.Chain{probe}})
			c.setThere(probeChain, 0)
			c.touch(probeChain)
		}
	}
	err := s.dataplane.Restore(ctx, b)
	if err != nil && !isAboutRules(err) {
		s.failed = cmp.Or(s.failed, err)
	}
	return err
}

// withoutJumps returns rules that jump to none of our chains.
func withoutJumps(rules []string) []string {
	list := make([]string, 0, len(rules))
	for _, rule := range rules {
		for _, jump := range []string{"-g ", "-j "} {
			if i := strings.LastIndex(rule, jump+chainPrefix); i >= 0 {
				rule = rule[:i] + "-j RETURN"
			}
		}
		list = append(list, rule)
	}
	return list
}
