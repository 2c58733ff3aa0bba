package localstate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// State holds the known objects of the cluster and what was last handed over. Its methods are not safe for concurrent
// use.
type State struct {
	opts     options
	families []model.Family
	log      klog.Logger
	started  time.Time // older trigger times are not recorded

	services map[model.ServiceName]*service
	slices   map[sliceKey]*sliceIntake
	node     nodeIntake
	held     map[*service]*hold // services whose last endpoints are held

	skipped  map[model.ServiceName]string // Service objects that are not proxied, and why
	ignored  map[string]ignoredSlices     // slices that are not used, by namespace; nil: not recorded
	triggers map[*service][]trigger       // since the last Flush

	zoneHints *zoneHints // nil: nobody asked for them

	dirty   []*service // services that changed since the last Flush
	pending Pending
	noLocal NoLocalEndpoints
	limits  limiter

	wave       waveBuffers
	indexAbove int // see the constant
}

// service is the record of one service name: its object, its slices, and what was handed over. It exists while any of
// these does. There may be many services, so data that is rare or short-lived is stored elsewhere.
type service struct {
	name   model.ServiceName
	intake *serviceIntake // nil: no object, or a skipped one
	slices []*sliceIntake // by name
	size   int            // the number of endpoints in slices

	// handed and endpoints are what was last handed over: the service, or nil, and a list for each port that has
	// endpoints, ordered by port name, each in order of target.
	handed    *model.Service
	endpoints [][]*model.Endpoint
	noLocal   noLocalPorts
	index     *index // of a large service, once it has been handed over

	// since the last Flush; the service is in State.dirty if one of them is set
	serviceChanged, endpointsChanged bool
}

// trigger is the time of the change in the cluster that caused a change of a slice (S19).
type trigger struct {
	family model.Family
	at     time.Time
}

// maxTriggers bounds the trigger times that are kept for a service while nothing is flushed.
const maxTriggers = 1000

// New returns an empty State. It keeps the logger of ctx.
func New(ctx context.Context, opts Options, cluster ClusterOptions) (*State, error) {
	if err := errors.Join(opts.validate(), cluster.validate()); err != nil {
		return nil, fmt.Errorf("invalid options: %w", err)
	}
	s := newState(klog.FromContext(ctx), options{opts, cluster})
	s.ignored = map[string]ignoredSlices{}
	s.node.init(opts)
	return s, nil
}

// newState returns a State without a node.
func newState(log klog.Logger, opts options) *State {
	return &State{
		opts:     opts,
		families: opts.EnabledFamilies(),
		log:      log,
		started:  time.Now(),
		services: map[model.ServiceName]*service{},
		slices:   map[sliceKey]*sliceIntake{},
		held:     map[*service]*hold{},
		skipped:  map[model.ServiceName]string{},
		triggers: map[*service][]trigger{},
		limits:   newLimiter(opts.EndpointLimits),

		indexAbove: indexAbove,
	}
}

// Pending says what the next Flush has to recompute. The result may turn out unchanged.
type Pending struct {
	// Services counts the services whose object changed, Endpoints those whose slices did, or something that these depend
	// on.
	Services, Endpoints int
	// Node: the node, or the service CIDRs, have changed.
	Node bool
	// Families are the IP families that are concerned.
	Families model.FamilySet
}

// Any reports whether there is anything to look at.
func (p Pending) Any() bool { return p.Services > 0 || p.Endpoints > 0 || p.Node }

// Pending returns what the next Flush has to look at.
func (s *State) Pending() Pending { return s.pending }

// Apply records a Service, EndpointSlice, Node or ServiceCIDR that is new, has changed or was deleted. Of a deleted
// object only the type, the namespace and the name count. The caller may change the object afterwards. Apply returns
// whether anything relevant changed. nil and objects of other types are errors.
func (s *State) Apply(object metav1.Object, deleted bool) (changed bool, err error) {
	switch obj := object.(type) {
	case *corev1.Service:
		return apply(obj, deleted, s.setService, s.deleteService)
	case *discoveryv1.EndpointSlice:
		return apply(obj, deleted, s.setEndpointSlice, s.deleteEndpointSlice)
	case *corev1.Node:
		return apply(obj, deleted, s.setNode, s.deleteNode)
	case *networkingv1.ServiceCIDR:
		return apply(obj, deleted, s.setServiceCIDR, s.deleteServiceCIDR)
	}
	return false, fmt.Errorf("objects of type %T are not used", object)
}

func apply[T any](obj *T, deleted bool, set, remove func(*T) bool) (changed bool, err error) {
	switch {
	case obj == nil:
		return false, fmt.Errorf("the object is a nil %T", obj)
	case deleted:
		return remove(obj), nil
	}
	return set(obj), nil
}

// setService records a new or changed Service. It returns whether anything relevant changed.
func (s *State) setService(obj *corev1.Service) bool {
	name := model.ServiceName{Namespace: obj.Namespace, Name: obj.Name}
	in, skip := intakeService(s.log, s.opts, s.families, obj)
	if in == nil {
		known := s.deleteService(obj) // it may have been served before
		s.skipped[name] = skip
		return known
	}
	delete(s.skipped, name)
	svc := s.service(name)
	if svc.intake != nil && in.saysTheSameAs(svc.intake) {
		return false
	}
	s.touchFamilies(svc) // its families so far
	svc.intake = in
	s.touchFamilies(svc)
	s.markService(svc)
	if h := s.held[svc]; h != nil {
		s.updateHold(svc, h, nil)
	}
	return true
}

// deleteService records the deletion of a Service; an unknown one is ignored. It returns whether that may change
// anything.
func (s *State) deleteService(obj *corev1.Service) bool {
	key := model.ServiceName{Namespace: obj.Namespace, Name: obj.Name}
	delete(s.skipped, key)
	svc := s.services[key]
	if svc == nil || svc.intake == nil {
		return false
	}
	s.touchFamilies(svc)
	svc.intake = nil
	s.markService(svc)
	s.endHold(svc)
	return true
}

// setEndpointSlice records a new or changed EndpointSlice. It returns whether anything relevant changed.
func (s *State) setEndpointSlice(obj *discoveryv1.EndpointSlice) bool {
	obj, ignored := s.admitSlice(obj)
	if ignored == "" {
		ignored = s.whyIgnored(obj)
	}
	s.noteIgnored(obj, ignored)
	if ignored != "" {
		return s.dropEndpointSlice(obj) // it may have been used before
	}
	key := sliceKey{obj.Namespace, obj.Name}
	old := s.slices[key]
	in := intakeSlice(s.log, s.opts, obj, old)
	in.service = s.service(model.ServiceName{Namespace: obj.Namespace, Name: obj.Labels[discoveryv1.LabelServiceName]})
	svc := in.service
	if old != nil && old.sameContent(in) {
		return false
	}
	s.slices[key] = in
	if old != nil {
		in.name = old.name // keep one copy of the string, the map's
		if old.service != svc {
			s.changeSlice(old.service, old, nil)
			old = nil
		}
	}
	s.changeSlice(svc, old, in)
	counts := svc.endpointsChanged && svc.slice(in.name) != nil // otherwise all its ports are held
	if t := triggerTime(obj); !t.IsZero() && !t.Before(s.started) && counts && len(s.triggers[svc]) < maxTriggers {
		s.triggers[svc] = append(s.triggers[svc], trigger{in.family, t})
	}
	return true
}

// deleteEndpointSlice records the deletion of an EndpointSlice; an unknown one is ignored. It returns whether it was
// known.
func (s *State) deleteEndpointSlice(obj *discoveryv1.EndpointSlice) bool {
	s.noteIgnored(obj, "")
	return s.dropEndpointSlice(obj)
}

func (s *State) dropEndpointSlice(obj *discoveryv1.EndpointSlice) bool {
	old := s.slices[sliceKey{obj.Namespace, obj.Name}]
	if old == nil {
		return false
	}
	delete(s.slices, old.key())
	s.changeSlice(old.service, old, nil)
	s.dropTriggers(old.service, old.family)
	return true
}

// changeSlice records the change of a slice of a service from old to in. Either may be nil.
func (s *State) changeSlice(svc *service, old, in *sliceIntake) {
	if s.holds(svc) {
		s.holdOrChange(svc, old, in)
		return
	}
	s.replaceSlice(svc, old, in)
}

// replaceSlice replaces old by in among the slices that count for a service. Either may be nil.
func (s *State) replaceSlice(svc *service, old, in *sliceIntake) {
	if old != nil {
		s.dropSlice(old)
		s.markEndpoints(svc, old.family)
	}
	if in != nil {
		s.addSlice(in)
		s.markEndpoints(svc, in.family)
	}
}

// addSlice puts a slice into its service.
func (s *State) addSlice(in *sliceIntake) {
	svc := in.service
	at, _ := svc.findSlice(in.name)
	for _, neighbour := range svc.slices[max(0, at-1):min(at+1, len(svc.slices))] {
		if slices.Equal(neighbour.ports, in.ports) {
			in.ports = neighbour.ports
		}
	}
	svc.noteChange(in.name, nil)
	svc.slices = slices.Insert(svc.slices, at, in)
	svc.size += in.len()
	s.zoneHints.count(in, 1)
}

// dropSlice takes a slice out of its service.
func (s *State) dropSlice(old *sliceIntake) {
	svc := old.service
	at, _ := svc.findSlice(old.name)
	svc.noteChange(old.name, old)
	svc.slices = slices.Delete(svc.slices, at, at+1)
	svc.size -= old.len()
	s.zoneHints.count(old, -1)
}

// findSlice returns the place of a slice and true, or the place where it belongs and false.
func (svc *service) findSlice(name string) (int, bool) {
	return slices.BinarySearchFunc(svc.slices, name,
		func(o *sliceIntake, name string) int { return strings.Compare(o.name, name) })
}

// slice returns the slice with a name, or nil.
func (svc *service) slice(name string) *sliceIntake {
	if at, found := svc.findSlice(name); found {
		return svc.slices[at]
	}
	return nil
}

// dropTriggers forgets the trigger times of a service in one family, as kube-proxy does when one of its slices is
// deleted (S19).
func (s *State) dropTriggers(svc *service, f model.Family) {
	s.triggers[svc] = slices.DeleteFunc(s.triggers[svc], func(t trigger) bool { return t.family == f })
}

// service returns the record of a service, creating it if necessary.
func (s *State) service(name model.ServiceName) *service {
	svc := s.services[name]
	if svc == nil {
		svc = &service{name: name}
		s.services[name] = svc
	}
	return svc
}

// forgetIfEmpty frees the record of a flushed service if it is empty (S14).
func (s *State) forgetIfEmpty(svc *service) {
	if svc.intake == nil && len(svc.slices) == 0 {
		delete(s.services, svc.name)
	}
}

func (svc *service) changed() bool { return svc.serviceChanged || svc.endpointsChanged }

// markService records that a service's object changed, or something that it depends on.
func (s *State) markService(svc *service) {
	if !svc.changed() {
		s.dirty = append(s.dirty, svc)
	}
	if !svc.serviceChanged {
		svc.serviceChanged = true
		s.pending.Services++
	}
}

// markEndpoints records that a service's slices changed, or something that they depend on.
func (s *State) markEndpoints(svc *service, f model.Family) {
	if !svc.changed() {
		s.dirty = append(s.dirty, svc)
	}
	if !svc.endpointsChanged {
		svc.endpointsChanged = true
		s.pending.Endpoints++
	}
	s.pending.Families |= f.Set()
}

// touchFamilies records that a change concerns the service's current families.
func (s *State) touchFamilies(svc *service) {
	if svc.intake == nil {
		return
	}
	for _, f := range s.families {
		if svc.intake.families.Has(f) || svc.intake.fields.ExternalName != "" {
			s.pending.Families |= f.Set()
		}
	}
}
