package frontend

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Options of a [Table]. Only Apply is required.
type Options struct {
	// Families are the served families, in the order in which they are applied. Nil means both, IPv4 first.
	Families []model.Family
	// Apply applies the changes of one family to the dataplane. Every Sync calls it once for each family, even if
	// nothing has changed, and never for two families at a time. It must not call methods of the table.
	//
	// If it returns nil, the changes are accepted and not reported again, except for service ports that it has refused
	// with [PortChange.Refuse]. If it returns an error that consists only of [*sink.PortError], these ports are refused
	// as well, and the dataplane still has what it had of them (with [Changes.Full], nothing); after [Changes.Accept]
	// they are accepted, and the errors count for this Sync only. After any other error, unless it has called
	// [Changes.Accept], the next call gets the same changes and those made since, and the family counts as failed.
	// Errors need no family in their text: Sync adds it.
	Apply func(ctx context.Context, c *Changes) error
	// OnProblem, if given, is called once for each part of a service that is not served, during Sync, for example to
	// create an Event. Problems are logged in any case. If more than nine with the same reason begin at once in a
	// family of a service, eight are reported, and a ninth says how many more there are.
	OnProblem func(ctx context.Context, p Problem)
	// Limits bound what a service and a namespace may cost.
	Limits Limits
	// Sticky, if not zero, says that sticky endpoints and ports are limited as well, and what Limits are without numbers
	// for them; then those for endpoints must be positive. It is for dataplanes where they slow down the changes of all
	// services.
	Sticky StickyLimits
	// OnRepair, if given, is called, with the table locked, after changes by others in a family were repaired: by
	// [Table.Repair], or by Apply that calls [Changes.Repaired].
	OnRepair func(model.Family)
	// NodePortAddresses, if given, returns the addresses of one family on which the backend serves node ports (S35). It
	// is called by every Sync. There a node port and an external IP or VIP of the same number have one owner (S59): if
	// it is the node port, the other one is not among the frontends. Without it, the node port always gives way.
	NodePortAddresses func(*model.Node, model.Family) []netip.Addr
	// AllEndpoints puts every endpoint that is in no other backend set into [Draining], also those that do not serve. It
	// is for dataplanes that end the connections of endpoints that they do not know: set AllEndpoints of
	// localstate.Options as well, without which most of these endpoints do not get here.
	AllEndpoints bool
	// Extra, if given, returns what else the backend needs to know about a service, for example from an annotation. The
	// value must be comparable with ==. A port whose Extra differs is reported as changed.
	Extra func(*model.Service) any
}

// validate returns an error if the options are invalid.
func (o *Options) validate() error {
	var errs []error
	if o.Apply == nil {
		errs = append(errs, errors.New("no Apply function"))
	}
	if o.Families != nil && len(o.Families) == 0 {
		errs = append(errs, errors.New("no families: give nil for both"))
	}
	if s := o.Sticky; s != (StickyLimits{}) && (min(s.Service, s.Namespace) < 1 ||
		min(s.ServicePorts, s.NamespacePorts) < 0) {
		errs = append(errs, errors.New("sticky: both limits of endpoints must be positive, and none negative"))
	}
	return errors.Join(append(errs, CheckFamilies(o.Families), o.Limits.Validate())...)
}

// CheckFamilies returns an error if the families in the options of a table or a backend are invalid.
func CheckFamilies(families []model.Family) error {
	for i, f := range families {
		if f != model.IPv4 && f != model.IPv6 || slices.Contains(families[:i], f) {
			return fmt.Errorf("families: invalid or duplicate family %v", f)
		}
	}
	return nil
}

// Table is a [sink.Sink] that keeps the frontends of both families. See the package documentation. The methods of the
// sink are called from one goroutine at a time; Repair and CleanUp may be called from any.
type Table struct {
	options Options
	budget  *budget

	// calls are those since the last Sync, in order.
	calls []call
	node  *model.Node // as of the next Sync
	// resyncAll and resyncFailed say for which families the next Sync reports everything as new.
	resyncAll, resyncFailed bool

	repairs  repairs
	reporter *reporter // nil without ReportProblems

	mu       sync.Mutex // guards the rest
	families []*family
	services map[model.ServiceName]*service
	tenants  map[string]*tenant
	current  *model.Node
	round    uint64
	active   bool // there has been a Sync, and no CleanUp since

	announced map[announced]more // in the present update

	healthPorts *healthPorts

	errs []error // of the last Sync, as report returns them
	err  error   // all of errs
}

// call is one call of the sink.
type call struct {
	service  *model.Service
	endpoint *model.Endpoint // nil if it is about a service
	gone     bool            // it is deleted: only the name or key matters
}

var (
	_ sink.Sink            = (*Table)(nil)
	_ sink.NodeSetter      = (*Table)(nil)
	_ sink.Resyncer        = (*Table)(nil)
	_ sink.FailureResyncer = (*Table)(nil)
	_ sink.Repairer        = (*Table)(nil)
)

// New returns a table without services.
func New(o Options) (*Table, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("frontend: %w", err)
	}
	t := &Table{options: o, current: &model.Node{},
		budget: &budget{Limits: o.Limits.complete(o.Sticky), due: map[*tenant]bool{},
			affinity: o.Sticky != StickyLimits{}, blockSize: 128},
		services: map[model.ServiceName]*service{}, tenants: map[string]*tenant{}, announced: map[announced]more{},
		healthPorts: &healthPorts{services: map[uint16]map[model.ServiceName]bool{}, touched: map[uint16]bool{}}}
	if o.Families == nil {
		o.Families = model.Families()
	}
	for i, f := range o.Families {
		family := newFamily(f, i, t.budget, t.healthPorts)
		family.all = o.AllEndpoints
		t.families = append(t.families, family)
	}
	return t, nil
}

// SetNode implements [sink.NodeSetter].
func (t *Table) SetNode(n *model.Node) {
	if n != nil {
		t.node = n
	}
}

// SetService implements [sink.Sink].
func (t *Table) SetService(s *model.Service) {
	if s != nil {
		t.calls = append(t.calls, call{service: s})
	}
}

// DeleteService implements [sink.Sink].
func (t *Table) DeleteService(name model.ServiceName) {
	t.calls = append(t.calls, call{service: &model.Service{Name: name}, gone: true})
}

// SetEndpoint implements [sink.Sink].
func (t *Table) SetEndpoint(ep *model.Endpoint) {
	if ep != nil {
		t.calls = append(t.calls, call{endpoint: ep})
	}
}

// DeleteEndpoint implements [sink.Sink].
func (t *Table) DeleteEndpoint(key model.EndpointKey) {
	ep := &model.Endpoint{Port: key.Port, Target: key.Target}
	t.calls = append(t.calls, call{endpoint: ep, gone: true})
}

// ForceResync implements [sink.Resyncer]: the next Sync reports everything as new, in every family.
func (t *Table) ForceResync() { t.resyncAll = true }

// ResyncFailed implements [sink.FailureResyncer]: the next Sync reports everything as new in the families that
// failed. Without it, a failed family gets what differs from what was last accepted, like any other.
func (t *Table) ResyncFailed() { t.resyncFailed = true }

// Sync implements [sink.Sink]: it applies every family, whether or not another one fails. The error is a
// [*sink.FamilyError] for each that failed, or that has service ports that are refused or exceed [Limits], with a
// [*sink.PortError] for each of these.
func (t *Table) Sync(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.update(ctx)
	t.active = true
	var errs []error
	for _, f := range t.families {
		f.full = f.full || t.resyncAll || t.resyncFailed && f.failed
		f.retry = t.resyncAll || t.resyncFailed || f.full && !f.failed
		f.begin()
		c := &Changes{t, f, f.full}
		err := t.options.Apply(ctx, c)
		if f.failed = sink.FailedFamilies(err) != 0; !f.failed {
			if f.retry = false; !f.early {
				err = c.refuse(err)
			}
			f.accept(t)
		}
		if err := f.report(err); err != nil {
			errs = append(errs, err)
		}
	}
	t.resyncAll, t.resyncFailed = false, false
	if ctx.Err() != nil && slices.ContainsFunc(t.families, func(f *family) bool { return f.failed }) {
		return ctx.Err()
	}
	if !slices.Equal(errs, t.errs) {
		t.errs, t.err = errs, errors.Join(errs...)
	}
	return t.err // the same one as before if nothing differs: there may be thousands of service ports in it
}

// report returns what Sync reports of a family after Apply has returned failure, except for service ports.
func (f *family) report(failure error) error {
	ports := [2]error{f.ledger.errors.error(), f.excesses.errors.error()}
	if failure != nil {
		return &sink.FamilyError{Family: f.family, Err: errors.Join(failure, ports[0], ports[1])}
	}
	if ports != f.reported {
		f.reported, f.portErrors = ports, nil
		if err := errors.Join(ports[0], ports[1]); err != nil {
			f.portErrors = &sink.FamilyError{Family: f.family, Err: err}
		}
	}
	return f.portErrors
}

// View calls show for each family with the ports that a service has there, as new and sorted by name, while no Sync
// changes them: for a backend that is a [sink.Describer]. It does not call show for a service without ports, nor after
// CleanUp. It may be called from any goroutine, but not from Apply.
func (t *Table) View(name model.ServiceName, show func(c *Changes, ports []*PortChange)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.services[name]
	if s == nil || !t.active || !slices.ContainsFunc(s.ports.all, func(p *port) bool { return p.current != nil }) {
		return
	}
	for _, f := range t.families {
		var ports []*PortChange
		for _, p := range s.ports.all {
			if pc := p.asNew(); pc != nil && p.family == f {
				ports = append(ports, pc)
			}
		}
		slices.SortFunc(ports, func(a, b *PortChange) int { return a.After.Name.Compare(b.After.Name) })
		show(&Changes{t, f, f.full}, ports)
	}
}

// CleanUp calls remove, which must remove all of the backend's objects from the dataplane, while nothing is applied.
// Nothing is repaired from then on. The next Sync reports everything as new.
func (t *Table) CleanUp(ctx context.Context, remove func(context.Context) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.active = false
	for _, f := range t.families {
		f.full, f.failed = true, false
	}
	return remove(ctx)
}
