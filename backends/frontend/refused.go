package frontend

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Refuse says that the dataplane did not take the port as wanted, and why: the package documentation says how that
// becomes an Event. All other ports are accepted as usual. has says what the dataplane has of the port now:
//
//   - Before: it still has what it had.
//   - nil: it has nothing of the port.
//   - After: the backend remembers what is missing, and needs only to be told when to try it again.
//
// Sync returns err, as a [*sink.PortError], until the port is accepted or gone. The port is delivered again when it
// changes, at a retry and at a resync, with what the dataplane has as its Before, even if it does not differ from that.
// Otherwise [Changes.Ports] leaves it out, in [Changes.All] as well unless the dataplane has After. A frontend that
// another port is accepted with in the meantime is no longer among those that the refused one has.
//
// If it is called several times for a port, all errors are reported, and the last has counts. It has no effect after
// [Changes.Accept], nor in a call that fails without it.
func (c *PortChange) Refuse(has *Port, err error) {
	decided := c.port.family.ledger.decided
	r := cmp.Or(decided[c.port], &refusal{})
	decided[c.port] = r
	r.has, r.err = has, cmp.Or(err, errors.New("the backend names no cause"))
	r.errs = append(r.errs, r.err)
}

// RefuseInDoubt is [PortChange.Refuse] for a port that may not be at fault, because it was refused together with
// others: it is delivered again in every call of Apply, not only at a retry.
func (c *PortChange) RefuseInDoubt(has *Port, err error) {
	c.Refuse(has, err)
	c.port.family.ledger.decided[c.port].inDoubt = true
}

// RefuseAgain refuses a port that is refused as it was before, for the same reason: nothing was tried.
func (c *PortChange) RefuseAgain() {
	l := &c.port.family.ledger
	if r := l.refused[c.port]; r != nil {
		again := *r
		l.decided[c.port] = &again
	}
}

// Report is for a backend that remembers what the dataplane lacks of the port: errs say what that is, and replace
// earlier ones. With errs the port is refused with After, without them it is accepted. servesExternal, which is called
// only with errs, reports whether any of its node port, VIPs and external IPs is served: see [sink.PortError].
func (c *PortChange) Report(errs []error, servesExternal func() bool) {
	switch l := &c.port.family.ledger; {
	case len(errs) > 0:
		l.decided[c.port] = &refusal{has: c.After, lacksExternal: !servesExternal(), errs: errs, err: errs[0]}
	case l.refused[c.port] != nil:
		c.Accept()
	}
}

// Accept says that the dataplane has the port as wanted. Delivered ports are accepted without it: it is for a backend
// that tries a refused port again by itself.
func (c *PortChange) Accept() { c.port.family.ledger.decided[c.port] = nil }

// Refused returns why the port is refused, nil if it is not. Until the present call of Apply says something about the
// port, it returns what was said last.
func (c *PortChange) Refused() error {
	l := &c.port.family.ledger
	r, decided := l.decided[c.port]
	if !decided {
		r = l.refused[c.port]
	}
	if r == nil {
		return nil
	}
	return r.err
}

// ledger has the service ports of a family that the dataplane refused.
type ledger struct {
	refused map[*port]*refusal
	inDoubt map[*port]bool // those of them that are delivered in every call
	// decided is what the present call of Apply says about ports, nil for those that it accepts. It counts when the
	// changes are accepted.
	decided map[*port]*refusal
	// obsolete are the frontends that the dataplane still has of a refused port that no longer owns them.
	obsolete map[Key]*port
	errors   portErrors // of those that are refused
}

// refusal is what Apply said about a port.
type refusal struct {
	has     *Port // what the dataplane has of it
	inDoubt bool
	// lacksExternal: nothing of has is served to outside clients.
	lacksExternal bool
	errs          []error
	err           error // one of errs; all of them, once it counts
}

// servesExternal reports whether the dataplane serves a refused port to outside clients.
func (r *refusal) servesExternal(p *port) bool {
	has := p.accepted
	return has != nil && !r.lacksExternal && has.NumFrontends() > has.Count(ClusterIP)
}

// keeps reports whether the dataplane still has what it had of a port.
func (r *refusal) keeps(p *port) bool { return r != nil && r.has != nil && r.has != p.current }

// isHeld reports whether a port is not delivered, because it was refused and has not changed since.
func (p *port) isHeld() bool { return !p.isDirty && p.accepted != p.current }

// begin starts a call of Apply or Look. It delivers what is refused in doubt and, at a retry, all that is refused.
func (f *family) begin() {
	if f.early = false; len(f.ledger.decided) > 0 {
		f.ledger.decided = map[*port]*refusal{}
	}
	for p := range f.ledger.inDoubt {
		p.mark()
	}
	if f.retry {
		for p := range f.ledger.refused {
			p.mark()
		}
	}
}

// prepare is called before the ports are accepted.
func (l *ledger) prepare() {
	for p, r := range l.decided {
		if p.mark(); !r.keeps(p) {
			continue
		}
		for k, before := range p.frontends {
			if before != (Frontend{}) && p.family.owners.owner(k) != p {
				l.obsolete[k] = p
			}
		}
	}
}

// accept makes the next changes of a port relative to what the dataplane has of it now.
func (l *ledger) accept(p *port) {
	r := l.decided[p]
	if !r.keeps(p) {
		has := p.current
		if r != nil {
			has = r.has
		}
		l.moveFrontends(p, has)
		p.accepted, p.frontends = has, nil
		for i := range p.endpoints.sets {
			p.endpoints.sets[i].accept(has != nil)
		}
	}
	delete(l.inDoubt, p)
	if r == nil || p.current == nil && p.accepted == nil {
		delete(l.refused, p)
		l.errors.set(p, nil)
		return
	}
	if r.errs != nil {
		r.err, r.errs = join(r.errs), nil
	}
	l.refused[p] = r
	l.renew(p)
	if r.inDoubt {
		l.inDoubt[p] = true
	}
}

// moveFrontends takes the frontends that the dataplane now has of a port away from the refused ports that still had
// them.
func (l *ledger) moveFrontends(p *port, has *Port) {
	if len(l.obsolete) == 0 {
		return
	}
	if l.refused[p] != nil {
		maps.DeleteFunc(l.obsolete, func(_ Key, loser *port) bool { return loser == p })
	}
	if has == nil {
		return
	}
	for change := range (&PortChange{Before: p.accepted, After: has, port: p}).FrontendChanges() {
		k := change.Key()
		if loser := l.obsolete[k]; loser != nil && change.After != nil {
			before := *loser.accepted
			before.frontends[loser.frontends[k].Kind]--
			loser.accepted = &before
			delete(loser.frontends, k)
			delete(l.obsolete, k)
			l.renew(loser)
		}
	}
}

// renew makes the error of a refused port.
func (l *ledger) renew(p *port) {
	if r := l.refused[p]; r != nil {
		l.errors.set(p, &sink.PortError{Port: p.name, Family: p.family.family, Err: r.err,
			ServesExternal: r.servesExternal(p)})
	}
}

// finish is called after the ports were accepted.
func (l *ledger) finish() {
	if len(l.decided) > 0 {
		l.decided = map[*port]*refusal{}
	}
}

// refuse takes the errors of single service ports that Apply returned. It returns those of ports that do not exist.
func (c *Changes) refuse(err error) error {
	var rest []error
	for _, e := range sink.PortErrors(err) {
		if p := c.find(e.Port); p != nil {
			pc := c.change(p)
			pc.Refuse(pc.Before, e.Err)
		} else {
			rest = append(rest, e)
		}
	}
	return errors.Join(rest...)
}

// join joins the errors of a port: sorted, so that the same state has the same text, and the first ten.
func join(errs []error) error {
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	var few failures.List // nobody reads those of 10,000 addresses
	for _, err := range errs {
		few.Add(err)
	}
	return few.Err()
}
