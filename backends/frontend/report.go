package frontend

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

var (
	_ sink.ProblemReporter  = (*Table)(nil)
	_ sink.ContestReporter  = (*Table)(nil)
	_ sink.ExternalReporter = (*Table)(nil)
)

// ReportProblems implements [sink.ProblemReporter]. The problems are those of Options.OnProblem, except
// InvalidEndpoint. Call it before the first Sync.
//
// When an address passes from one owner to another, services that still wait for it are not reported: there may be
// thousands, and only [Table.Problems] names the owner.
func (t *Table) ReportProblems(report func(name model.ServiceName, any bool)) {
	t.reporter = &reporter{report: report, changed: map[model.ServiceName]bool{},
		losses: map[model.ServiceName]map[waiting]bool{}}
	for _, f := range t.families {
		f.owners.reporter = t.reporter
	}
}

// Problems implements [sink.ProblemReporter]. It needs [Table.ReportProblems].
func (t *Table) Problems(name model.ServiceName) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var texts []string
	if s := t.services[name]; s != nil {
		for p, found := range s.problems {
			if p.Reason != InvalidEndpoint {
				texts = append(texts, found.message)
			}
		}
	}
	slices.Sort(texts)
	texts = slices.Compact(texts) // of both families
	if t.reporter == nil {
		return texts
	}
	lost := t.reporter.losses[name]
	if len(lost) == 0 {
		return texts
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(lost)), func(a, b waiting) int { return a.key.Compare(b.key) })
	text := fmt.Sprintf("%v belongs to %v", first.key, first.port.family.owners.byKey[first.key].port.name)
	if n := len(lost) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more belong to others", n)
	}
	return append(texts, text)
}

// ReportContests implements [sink.ContestReporter]. Where a node port and an external IP or VIP contest an address of
// the node, that is a contest of the address; only tables with Options.NodePortAddresses have those. A port that
// exceeds limits takes no part in a contest.
func (t *Table) ReportContests(report func(sink.Contest)) {
	for _, f := range t.families {
		f.owners.contests = func(k Key, owner *port) {
			c := sink.Contest{Family: f.family, Protocol: k.Protocol, Destination: netip.AddrPortFrom(k.Addr, k.Port)}
			if owner != nil {
				c.Owner = owner.name
			}
			report(c)
		}
	}
}

// ReportExternal implements [sink.ExternalReporter].
func (t *Table) ReportExternal(report func(port model.PortName, f model.Family, owns bool)) {
	for _, f := range t.families {
		f.onExternal = report
	}
}

// reporter reports the services of which a part is not served. It is nil for a table without ReportProblems.
type reporter struct {
	report  func(name model.ServiceName, any bool)
	changed map[model.ServiceName]bool             // those to be reported
	losses  map[model.ServiceName]map[waiting]bool // never empty
}

// waiting is a key that a port asks for and another one has.
type waiting struct {
	port *port
	key  Key
}

// mark says that the problems of a service may have changed.
func (r *reporter) mark(name model.ServiceName) {
	if r != nil {
		r.changed[name] = true
	}
}

// lost says that a port asks for a key that another one has.
func (r *reporter) lost(loser *port, k Key) {
	if r == nil {
		return
	}
	name, l := loser.name.Service, waiting{loser, k}
	lost := r.losses[name]
	if lost == nil {
		lost = map[waiting]bool{}
		r.losses[name] = lost
	}
	if !lost[l] {
		lost[l] = true
		r.mark(name)
	}
}

// found says that a port has a key, or does not ask for it any more.
func (r *reporter) found(p *port, k Key) {
	if r == nil {
		return
	}
	name, l := p.name.Service, waiting{p, k}
	lost := r.losses[name]
	if !lost[l] {
		return
	}
	if delete(lost, l); len(lost) == 0 {
		delete(r.losses, name)
	}
	r.mark(name)
}

// tell reports what has changed.
func (r *reporter) tell(services map[model.ServiceName]*service) {
	if r == nil || len(r.changed) == 0 {
		return
	}
	for name := range r.changed {
		any := len(r.losses[name]) > 0
		if s := services[name]; s != nil {
			for p := range s.problems {
				any = any || p.Reason != InvalidEndpoint
			}
		}
		r.report(name, any)
	}
	r.changed = map[model.ServiceName]bool{}
}

// told is a problem that was reported, and in which round.
type told struct {
	round   uint64 // in which it was last there
	message string
}

// forgetProblems removes the problems of a service that the present round has not found, except those of endpoints and
// of others' node ports, about which the service says nothing.
func (t *Table) forgetProblems(s *service) {
	n := len(s.problems)
	maps.DeleteFunc(s.problems, func(k Problem, found told) bool {
		return found.round != t.round && k.Reason != InvalidEndpoint && k.Reason != HealthCheckPortInUse
	})
	if len(s.problems) != n {
		t.reporter.mark(s.name)
	}
}
