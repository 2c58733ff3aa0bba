package page

import (
	"cmp"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// busy counts how often each service changed, in a period and in the one before. Where very many services change it
// keeps those that do so most often (Misra and Gries): their counts are then lower bounds.
type busy struct {
	now, before map[model.ServiceName]int
	since       time.Time // when the period began
	began       time.Time // the time of the first change that is counted
}

const (
	busyPeriod = 5 * time.Minute
	maxBusy    = 256 // services that are counted
	maxBusiest = 5   // that are shown
)

// busyService is a service with the number of its changes.
type busyService struct {
	Service model.ServiceName `json:"service"`
	Changes int               `json:"changes"`
}

// rotate begins a new period if the present one is over.
func (b *busy) rotate(at time.Time) {
	switch age := at.Sub(b.since); {
	case b.now == nil || age >= 2*busyPeriod:
		*b = busy{since: at, began: at, now: map[model.ServiceName]int{}}
	case age >= busyPeriod:
		b.before, b.began = b.now, b.since
		b.now, b.since = map[model.ServiceName]int{}, at
	}
}

// add counts a change.
func (b *busy) add(name model.ServiceName) {
	if _, known := b.now[name]; !known && len(b.now) == maxBusy {
		for other := range b.now {
			if b.now[other]--; b.now[other] == 0 {
				delete(b.now, other)
			}
		}
		return
	}
	b.now[name]++
}

// busiest returns the services that changed most often.
func (b *busy) busiest() []busyService {
	list := make([]busyService, 0, len(b.now)+len(b.before))
	for name, n := range b.now {
		list = append(list, busyService{name, n + b.before[name]})
	}
	for name, n := range b.before {
		if _, counted := b.now[name]; !counted {
			list = append(list, busyService{name, n})
		}
	}
	slices.SortFunc(list, func(x, y busyService) int {
		return cmp.Or(cmp.Compare(y.Changes, x.Changes), x.Service.Compare(y.Service))
	})
	return append([]busyService{}, list[:min(len(list), maxBusiest)]...)
}
