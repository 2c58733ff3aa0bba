package wire

import (
	"cmp"
	"reflect"
	"slices"
	"unsafe"

	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Delta is what changed of one service from one state to a later one. It has nothing of what is the same in both, so
// it takes as much memory as has changed. It is immutable once it is made.
type Delta struct {
	Name model.ServiceName
	// ServiceChanged: the service itself was added, removed or changed. Old and New are set only then; Old is nil if it
	// was added, New if it was removed.
	ServiceChanged bool
	Old, New       *model.Service
	Endpoints      []EndpointDelta
}

// EndpointDelta is an endpoint that was added (Old is nil), removed (New is nil) or replaced.
type EndpointDelta struct{ Old, New *model.Endpoint }

// Key returns the key of the endpoint.
func (e EndpointDelta) Key() model.EndpointKey { return cmp.Or(e.Old, e.New).Key() }

// DeltaOf returns the change that a comparison of two states has found.
func DeltaOf(c sink.Change) Delta {
	out := Delta{Name: c.Name}
	if c.ServiceChanged() {
		out.ServiceChanged = true
		if c.Old != nil {
			out.Old = c.Old.Service
		}
		if c.New != nil {
			out.New = c.New.Service
		}
	}
	for before, now := range c.Endpoints() {
		out.Endpoints = append(out.Endpoints, EndpointDelta{before, now})
	}
	return out
}

// Apply makes the change in a sink that has the state before; with back, in one that has the state afterwards, where it
// brings back the former.
func (c *Delta) Apply(to sink.Sink, back bool) {
	service := c.New
	if back {
		service = c.Old
	}
	if c.ServiceChanged && service != nil {
		to.SetService(service)
	}
	for _, e := range c.Endpoints {
		now := e.New
		if back {
			now = e.Old
		}
		if now != nil {
			to.SetEndpoint(now)
		} else {
			to.DeleteEndpoint(e.Key())
		}
	}
	if c.ServiceChanged && service == nil {
		to.DeleteService(c.Name)
	}
}

// Size returns about how many bytes a change takes that nothing else takes: what was there before.
func (c *Delta) Size() int {
	const text = 32 // a string in a map, besides its bytes
	size := int(unsafe.Sizeof(*c)) + cap(c.Endpoints)*int(unsafe.Sizeof(EndpointDelta{}))
	for _, e := range c.Endpoints {
		if e.Old != nil {
			size += int(unsafe.Sizeof(*e.Old))
		}
	}
	if s := c.Old; s != nil {
		size += int(unsafe.Sizeof(*s)) + len(s.Ports)*int(unsafe.Sizeof(model.ServicePort{}))
		now := cmp.Or(c.New, &model.Service{})
		for _, texts := range [][2]map[string]string{{s.Labels, now.Labels}, {s.Annotations, now.Annotations}} {
			if isSame(texts[0], texts[1]) { // the object is the same, and something else has changed
				continue
			}
			for key, value := range texts[0] {
				size += text + len(key) + len(value)
			}
		}
	}
	return size
}

// isSame reports whether two maps are one.
func isSame(a, b map[string]string) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// Merge returns the sum of changes that followed each other, in the order of names and keys. What is as it was before
// is left out.
func Merge(waves [][]Delta) []Delta {
	if len(waves) == 1 {
		return waves[0]
	}
	sums := map[model.ServiceName]*sum{}
	for _, changes := range waves {
		for i := range changes {
			c := &changes[i]
			if sums[c.Name] == nil {
				sums[c.Name] = &sum{Delta: Delta{Name: c.Name}, at: map[model.EndpointKey]int{}}
			}
			sums[c.Name].add(c)
		}
	}
	var all []Delta
	for _, s := range sums {
		if c := s.net(); c.ServiceChanged || len(c.Endpoints) > 0 {
			all = append(all, c)
		}
	}
	SortDeltas(all)
	return all
}

// SortDeltas brings changes in the order of names.
func SortDeltas(all []Delta) {
	slices.SortFunc(all, func(a, b Delta) int { return a.Name.Compare(b.Name) })
}

// sum is the sum of changes of one service.
type sum struct {
	Delta
	at map[model.EndpointKey]int // in Endpoints
}

func (s *sum) add(c *Delta) {
	if c.ServiceChanged {
		if !s.ServiceChanged {
			s.ServiceChanged, s.Old = true, c.Old
		}
		s.New = c.New
	}
	for _, e := range c.Endpoints {
		key := e.Key()
		at, known := s.at[key]
		if !known {
			s.at[key] = len(s.Endpoints)
			s.Endpoints = append(s.Endpoints, e)
			continue
		}
		s.Endpoints[at].New = e.New
	}
}

// net returns the sum without what is as it was before.
func (s *sum) net() Delta {
	c := s.Delta
	if c.ServiceChanged && c.Old.Equal(c.New) {
		c.ServiceChanged, c.Old, c.New = false, nil, nil
	}
	c.Endpoints = slices.DeleteFunc(c.Endpoints, func(e EndpointDelta) bool { return e.Old.Equal(e.New) })
	slices.SortFunc(c.Endpoints, func(a, b EndpointDelta) int { return a.Key().Compare(b.Key()) })
	return c
}

// encode returns the message of the change.
func (c *Delta) encode() *remotev1.ServiceChange {
	out := &remotev1.ServiceChange{Namespace: c.Name.Namespace, Name: c.Name.Name}
	if c.ServiceChanged {
		if c.New == nil {
			out.Deleted = true
			return out
		}
		out.Whole = c.Old == nil
		out.Service = encodeService(c.New)
	}
	for _, e := range c.Endpoints {
		if e.New != nil {
			out.Endpoints = append(out.Endpoints, encodeEndpoint(e.New))
		} else {
			out.Removed = append(out.Removed, encodeKey(e.Old.Key()))
		}
	}
	return out
}
