package differential

import (
	"runtime"
	"slices"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

func sizes() []size { return []size{{1000, 10}, {10000, 10}} }

// operation is what is measured: on a new brain, loading everything; on a loaded one, an event and, if one is due, the
// sync after it.
type operation struct {
	name   string
	new    bool
	events func(size) []*discoveryv1.EndpointSlice
	due    bool // upstream finds a sync due, localstate perhaps
}

func operations() []operation {
	return []operation{
		{name: "first full state", new: true},
		{name: "one endpoint changed", events: size.changes, due: true},
		{name: "one slice touched", events: size.touches, due: true},
		{name: "same slice again", events: size.repeats},
	}
}

// run lets it happen for the n-th time.
func (op operation) run(b brain, o objects, events []*discoveryv1.EndpointSlice, n int) {
	if op.new {
		o.load(b)
		return
	}
	if b.slice(events[n%len(events)]) {
		b.sync()
	} else if _, isUpstream := b.(*upstreamBrain); isUpstream && op.due {
		panic("nothing has changed")
	}
}

// rounds is the number of services whose slices change, in turn.
const rounds = 500

// changes replaces the first pod of a service, or puts it back.
func (s size) changes() []*discoveryv1.EndpointSlice {
	var events []*discoveryv1.EndpointSlice
	for version := 1; version >= 0; version-- {
		for i := range min(s.services, rounds) {
			events = append(events, s.slice(i, version))
		}
	}
	return events
}

// touches changes nothing but an annotation.
func (s size) touches() []*discoveryv1.EndpointSlice {
	var events []*discoveryv1.EndpointSlice
	for _, value := range []string{"x", "y"} {
		for i := range min(s.services, rounds) {
			slice := s.slice(i, 0)
			slice.Annotations = map[string]string{"touched": value}
			events = append(events, slice)
		}
	}
	return events
}

// repeats sends slices as they are, as a resync does.
func (s size) repeats() []*discoveryv1.EndpointSlice {
	var events []*discoveryv1.EndpointSlice
	for i := range min(s.services, rounds) {
		events = append(events, s.slice(i, 0))
	}
	return events
}

// prepare makes everything that op needs, before the clock runs.
func (op operation) prepare(s size) (objects, []*discoveryv1.EndpointSlice) {
	if op.events == nil {
		return s.objects(), nil
	}
	return s.objects(), op.events(s)
}

// BenchmarkBrain measures upstream's code and localstate one after the other. See doc.go for what can be compared.
func BenchmarkBrain(b *testing.B) {
	for _, op := range operations() {
		for _, s := range sizes() {
			o, events := op.prepare(s)
			for _, brain := range brains() {
				b.Run(op.name+"/"+s.String()+"/"+brain.name, func(b *testing.B) {
					subject := brain.make()
					if !op.new {
						o.load(subject)
					}
					b.ReportAllocs()
					n := 0
					for b.Loop() {
						if op.new {
							subject = brain.make()
						}
						op.run(subject, o, events, n)
						n++
					}
				})
			}
		}
	}
}

// BenchmarkRatio measures both in turns, in the same loop, and reports how many times as long upstream's code takes, by
// the medians. That is the figure to quote: other load affects both sides, and hardly the median. (The cost of a side's
// garbage is not in the median, either; BenchmarkBrain has it.)
func BenchmarkRatio(b *testing.B) {
	all := brains()
	upstream := all[0]
	for _, op := range operations() {
		for _, s := range sizes() {
			o, events := op.prepare(s)
			for _, local := range all[1:] {
				b.Run(op.name+"/"+s.String()+"/"+local.name, func(b *testing.B) {
					makers := []func() brain{upstream.make, local.make}
					subjects := []brain{upstream.make(), local.make()}
					if !op.new {
						o.load(subjects[0])
						o.load(subjects[1])
					}
					var spent [2][]time.Duration
					for b.Loop() {
						for i := range subjects {
							if op.new {
								subjects[i] = makers[i]()
								runtime.GC() // so that this one does not collect the other's garbage
							}
							start := time.Now()
							op.run(subjects[i], o, events, len(spent[i]))
							spent[i] = append(spent[i], time.Since(start))
						}
					}
					b.ReportMetric(0, "ns/op") // of both, with what lies between
					b.ReportMetric(median(spent[0]), "upstream-ns")
					b.ReportMetric(median(spent[1]), "localstate-ns")
					b.ReportMetric(median(spent[0])/median(spent[1]), "x-upstream")
				})
			}
		}
	}
}

func median(list []time.Duration) float64 {
	slices.Sort(list)
	return float64(list[len(list)/2].Nanoseconds())
}

// BenchmarkMemory reports the memory that is held when everything is loaded and the caller has dropped the objects. The
// parts of them that a brain keeps alive count, because its proxy would hold them, too. The objects alone are reported
// for comparison: a kube-proxy holds them in any case, in its informers' stores.
func BenchmarkMemory(b *testing.B) {
	for _, s := range sizes() {
		var upstream float64
		for _, brain := range brains() {
			b.Run(s.String()+"/"+brain.name, func(b *testing.B) {
				var held float64
				for b.Loop() {
					held = heldBy(func() any {
						subject := brain.make()
						s.objects().load(subject)
						return subject
					})
				}
				if brain.name == "upstream" {
					upstream = held
				}
				b.ReportMetric(held/float64(s.services*s.endpoints), "B/endpoint")
				if upstream > 0 {
					b.ReportMetric(upstream/held, "x-upstream")
				}
			})
		}
		b.Run(s.String()+"/objects", func(b *testing.B) {
			var held float64
			for b.Loop() {
				held = heldBy(func() any { return s.objects() })
			}
			b.ReportMetric(held/float64(s.services*s.endpoints), "B/endpoint")
		})
	}
}

// heldBy returns how much a value adds to the heap.
func heldBy(f func() any) float64 {
	before := testkit.LiveHeap()
	value := f()
	after := testkit.LiveHeap()
	runtime.KeepAlive(value)
	return float64(after) - float64(before)
}
