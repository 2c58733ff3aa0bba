package health

import (
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/internal/refusals"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// outside follows which service ports outside clients reach on this node. Only the goroutine that calls the methods of
// Services as a sink uses it.
type outside struct {
	refused refusals.Ports // by the dataplane, or by limits
	// unreached are the ports of which other ports own all external addresses (S59), as applied. reported has those for
	// which that has changed since their family was last applied, and whether they own any now.
	unreached map[familyPort]bool
	reported  map[familyPort]bool
	looked    int // addresses looked at, for tests
}

// familyPort is a service port in a family.
type familyPort struct {
	model.PortName
	family model.Family
}

func newOutside() outside {
	return outside{unreached: map[familyPort]bool{}, reported: map[familyPort]bool{},
		refused: refusals.Ports{Counts: func(e *sink.PortError) bool { return !e.ServesExternal }}}
}

// report records what the backend reports.
func (o *outside) report(port model.PortName, f model.Family, owns bool) {
	p := familyPort{port, f}
	if owns == o.unreached[p] {
		o.reported[p] = owns
	} else {
		delete(o.reported, p) // it is again as it was applied
	}
}

// note records the result of a Sync, and returns the services of which outside clients may reach more or less.
func (o *outside) note(err error, failed model.FamilySet) (changed []model.ServiceName) {
	changed = o.refused.Note(err)
	for p, owns := range o.reported {
		if failed.Has(p.family) {
			continue
		}
		delete(o.reported, p)
		if owns {
			delete(o.unreached, p)
		} else {
			o.unreached[p] = true
		}
		changed = append(changed, p.Service)
	}
	return changed
}

// isServed reports whether outside clients reach at least one port of a service on this node, in at least one family. A
// service with nothing for them yet, such as one that waits for its VIPs, counts as served.
func (o *outside) isServed(service *model.Service) bool {
	hasAddress := o.familiesOf(service.LoadBalancerIPs) | o.familiesOf(service.ExternalIPs)
	refused, offers := o.refused.Of(service.Name), false
	for n := range service.Ports {
		for _, f := range model.Families() {
			sp := &service.Ports[n]
			switch {
			case sp.Routes.At(f).External.Endpoints == 0 || sp.NodePort == 0 && !hasAddress.Has(f):
				// nothing is for outside clients
			case !sp.TooManyEndpoints && !refused.Has(sp, f) && !o.isUnreached(service.PortName(*sp), f):
				return true
			default:
				offers = true
			}
		}
	}
	return !offers
}

func (o *outside) isUnreached(port model.PortName, f model.Family) bool {
	return len(o.unreached) > 0 && o.unreached[familyPort{port, f}]
}

// familiesOf returns the families of addresses.
func (o *outside) familiesOf(list []netip.Addr) (families model.FamilySet) {
	for _, a := range list {
		o.looked++
		if families |= model.FamilyOf(a).Set(); families == model.BothFamilies {
			break
		}
	}
	return families
}
