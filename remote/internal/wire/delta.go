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

// Delta is the change of one service from one state to a later one. It has only what differs, so its memory is that of
// the change. It is immutable once it is made.
type Delta struct {
	Name model.ServiceName
	// ServiceChanged: the service itself was added, removed or changed. Only then are Old and New set: Old unless it was
	// added, New unless it was removed.
	ServiceChanged bool
	Old, New       *model.Service
	Endpoints      []EndpointDelta
}

// EndpointDelta is an endpoint that was added (Old is nil), removed (New is nil) or replaced.
type EndpointDelta struct{ Old, New *model.Endpoint }

// Key returns the key of the endpoint.
func (e EndpointDelta) Key() model.EndpointKey { return cmp.Or(e.Old, e.New).Key() }

// DeltaOf returns the delta of a change between two snapshots.
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

// Apply applies the delta to a sink with the state before; with back, it reverts the delta in a sink with the state
// after.
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

// Size returns the approximate memory in bytes that only the delta keeps in use: that of the old values.
func (c *Delta) Size() int {
	const text = 32 // the overhead of a string in a map
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
			if isSame(texts[0], texts[1]) { // both versions share the map
				continue
			}
			for key, value := range texts[0] {
				size += text + len(key) + len(value)
			}
		}
	}
	return size
}

// isSame reports whether two maps are the same one.
func isSame(a, b map[string]string) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// Merge returns the sum of successive changes, ordered by name and key. It leaves out changes that were reverted.
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

// SortDeltas sorts deltas by name.
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

// net returns the sum without changes that were reverted.
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
