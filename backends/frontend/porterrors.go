package frontend

import (
	"errors"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

// portErrors are errors of service ports, by name. There may be tens of thousands. When one changes, the others stay
// the same pointers, so that receivers of the joined error need not check them again.
type portErrors struct {
	of      map[*port]*sink.PortError
	changed map[*port]bool // since they were joined
	ports   []*port        // as they were joined, in the order of their names
	errs    []error        // theirs
	joined  error
	steps   int // comparisons of names, and errors that were listed, for tests
}

// set sets the error of a port; nil removes it.
func (l *portErrors) set(p *port, err *sink.PortError) {
	before, known := l.of[p]
	switch {
	case err == before && known == (err != nil):
		return
	case err == nil:
		delete(l.of, p)
	default:
		if l.of == nil {
			l.of = map[*port]*sink.PortError{}
		}
		l.of[p] = err
	}
	if l.changed == nil {
		l.changed = map[*port]bool{}
	}
	l.changed[p] = true
}

// error joins the errors. It returns the same error as before if nothing was set.
func (l *portErrors) error() error {
	if len(l.changed) == 0 {
		return l.joined
	}
	var added []*port
	for p := range l.changed {
		if l.of[p] != nil {
			added = append(added, p)
		}
	}
	byName := func(a, b *port) int {
		l.steps++
		return a.name.Compare(b.name)
	}
	slices.SortFunc(added, byName)
	ports, errs := make([]*port, 0, len(l.of)), make([]error, 0, len(l.of))
	take := func(p *port, err error) {
		l.steps++
		ports, errs = append(ports, p), append(errs, err)
	}
	for i, p := range l.ports {
		if l.changed[p] {
			continue
		}
		for len(added) > 0 && byName(added[0], p) < 0 {
			take(added[0], l.of[added[0]])
			added = added[1:]
		}
		take(p, l.errs[i])
	}
	for _, p := range added {
		take(p, l.of[p])
	}
	l.ports, l.errs, l.joined, l.changed = ports, errs, errors.Join(errs...), nil
	return l.joined
}
