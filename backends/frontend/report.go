package frontend

import (
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

var _ sink.ProblemReporter = (*Table)(nil)

// ReportProblems implements [sink.ProblemReporter]. The problems are those of Options.OnProblem, except InvalidEndpoint.
// Call it before the first Sync.
func (t *Table) ReportProblems(report func(name model.ServiceName, problems []string)) {
	t.reporter = &reporter{report: report, changed: map[model.ServiceName]bool{},
		losses: map[model.ServiceName]*losses{}}
	for _, f := range t.families {
		f.owners.reporter = t.reporter
	}
}

// reporter tells what is not served of each service whenever that changes. A nil reporter is for a table that nobody
// asks.
type reporter struct {
	report  func(model.ServiceName, []string)
	changed map[model.ServiceName]bool // those to be reported
	losses  map[model.ServiceName]*losses
}

// losses are the keys that the ports of a service ask for and other ones have.
type losses struct {
	owners map[waiting]*port
	told   waiting // the one that was named last
}

// waiting is a port that asks for a key.
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
func (r *reporter) lost(loser *port, k Key, owner *port) {
	if r == nil {
		return
	}
	name, w := loser.name.Service, waiting{loser, k}
	l := r.losses[name]
	if l == nil {
		l = &losses{owners: map[waiting]*port{}}
		r.losses[name] = l
	}
	if l.owners[w] != owner {
		l.owners[w] = owner
		r.mark(name)
	}
}

// found says that a port has a key, or does not ask for it any more.
func (r *reporter) found(p *port, k Key) {
	if r == nil {
		return
	}
	name, w := p.name.Service, waiting{p, k}
	l := r.losses[name]
	if l == nil || l.owners[w] == nil {
		return
	}
	if delete(l.owners, w); len(l.owners) == 0 {
		delete(r.losses, name)
	}
	r.mark(name)
}

// text names one of the keys: the same for as long as it is lost.
func (l *losses) text() string {
	if l.owners[l.told] == nil {
		for l.told = range l.owners {
			break
		}
	}
	text := fmt.Sprintf("%v belongs to %v", l.told.key, l.owners[l.told].name)
	if n := len(l.owners) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more belong to others", n)
	}
	return text
}

// tell reports what has changed.
func (r *reporter) tell(services map[model.ServiceName]*service) {
	if r == nil || len(r.changed) == 0 {
		return
	}
	for name := range r.changed {
		var texts []string
		if s := services[name]; s != nil {
			for p, found := range s.problems {
				if p.Reason != InvalidEndpoint {
					texts = append(texts, found.message)
				}
			}
		}
		slices.Sort(texts)
		texts = slices.Compact(texts) // of both families
		if l := r.losses[name]; l != nil {
			texts = append(texts, l.text())
		}
		r.report(name, texts)
	}
	r.changed = map[model.ServiceName]bool{}
}

// told is a problem that was reported.
type told struct {
	round   uint64 // in which it was last there
	message string
}

// forgetProblems removes the problems of a service that the present round has not found, except those of endpoints, of
// which the service says nothing.
func (t *Table) forgetProblems(s *service) {
	n := len(s.problems)
	maps.DeleteFunc(s.problems, func(k Problem, found told) bool {
		return found.round != t.round && k.Reason != InvalidEndpoint
	})
	if len(s.problems) != n {
		t.reporter.mark(s.name)
	}
}
