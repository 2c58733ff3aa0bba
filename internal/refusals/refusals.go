// Package refusals follows, from the errors of Sync, which service ports a sink does not serve.
package refusals

import (
	"slices"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Ports holds the service ports that the last Sync named in its error. The zero value is empty and counts every named
// port.
type Ports struct {
	// Counts reports whether a port with this error counts. Nil: every port counts.
	Counts func(*sink.PortError) bool

	err  error
	list map[model.ServiceName][]*sink.PortError // in the order of err
}

// port is a service port of a known service in a family.
type port struct {
	name     string
	protocol model.Protocol
	family   model.Family
}

// Set has ports of one service.
type Set map[port]struct{}

// Note records the result of a Sync, and returns the services whose ports have changed. The ports of a family that
// failed as a whole stay as they were. The same error as last time costs nothing.
func (p *Ports) Note(err error) (changed []model.ServiceName) {
	if syncing.SameError(err, p.err) {
		return nil
	}
	failed := sink.FailedFamilies(err)
	errs := slices.DeleteFunc(sink.PortErrors(err), func(e *sink.PortError) bool {
		return failed.Has(e.Family) || p.Counts != nil && !p.Counts(e)
	})
	if failed != 0 {
		for _, before := range p.list {
			for _, e := range before {
				if failed.Has(e.Family) {
					errs = append(errs, e)
				}
			}
		}
	}
	now := map[model.ServiceName][]*sink.PortError{}
	for len(errs) > 0 { // those of a service mostly follow each other
		name, n := errs[0].Port.Service, 1
		for n < len(errs) && errs[n].Port.Service == name {
			n++
		}
		if now[name] == nil {
			now[name] = errs[:n:n]
		} else {
			now[name] = append(now[name], errs[:n]...)
		}
		errs = errs[n:]
	}
	for name, list := range now {
		if !slices.EqualFunc(list, p.list[name], samePort) {
			changed = append(changed, name)
		}
	}
	for name := range p.list {
		if now[name] == nil {
			changed = append(changed, name)
		}
	}
	p.err, p.list = err, now
	return changed
}

func samePort(a, b *sink.PortError) bool { return a == b || a.Port == b.Port && a.Family == b.Family }

// Of returns the ports of a service that are not served, nil if there are none.
func (p *Ports) Of(name model.ServiceName) Set {
	list := p.list[name]
	if len(list) == 0 {
		return nil
	}
	set := make(Set, len(list))
	for _, e := range list {
		set[port{e.Port.Port, e.Port.Protocol, e.Family}] = struct{}{}
	}
	return set
}

// Has reports whether a port is in the set in a family.
func (s Set) Has(sp *model.ServicePort, f model.Family) bool {
	if len(s) == 0 {
		return false
	}
	_, ok := s[port{sp.Name, sp.Protocol, f}]
	return ok
}
