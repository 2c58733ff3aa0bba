package frontend

import (
	"errors"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

// portErrors are errors of service ports, by name. There may be tens of thousands, of which one changes: the others
// stay the same pointers, so that nobody who gets the joined error has to look at them again.
type portErrors struct {
	ports  []*port
	errs   []error // a *sink.PortError of each
	joined error
	stale  bool // joined
}

// set gives a port an error; nil takes it away.
func (l *portErrors) set(p *port, err *sink.PortError) {
	i, found := slices.BinarySearchFunc(l.ports, p, func(a, b *port) int { return a.name.Compare(b.name) })
	switch {
	case err == nil && (!found || l.ports[i] != p):
		return
	case err == nil:
		l.ports, l.errs = slices.Delete(l.ports, i, i+1), slices.Delete(l.errs, i, i+1)
	case found:
		l.ports[i], l.errs[i] = p, err
	default:
		l.ports, l.errs = slices.Insert(l.ports, i, p), slices.Insert(l.errs, i, error(err))
	}
	l.stale = true
}

// error joins the errors. It is the same one as before if nothing was set.
func (l *portErrors) error() error {
	if l.stale {
		l.joined, l.stale = errors.Join(l.errs...), false
	}
	return l.joined
}
