package page

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/health"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// pageState is what api/state returns, and what each message of api/events has.
type pageState struct {
	Revision  uint64      `json:"revision"`
	Node      *model.Node `json:"node"`
	Services  int         `json:"services"`
	Endpoints int         `json:"endpoints"`
	// Phase is the phase of the proxy; see [health.Phase]. It is "" without Options.Health.
	Phase    string        `json:"phase,omitempty"`
	Families []familyState `json:"families"`
	// Sync is the result of the last Sync, nil before the first one.
	Sync *syncResult `json:"sync"`
	// Failing is the number of services that the backend could not apply.
	Failing int      `json:"failing"`
	Repairs *repairs `json:"repairs,omitempty"`
	// Events are the last ones, the latest first; in a message only the new ones.
	Events []event `json:"events"`

	// The rest is only in messages. Changed are the services that differ from the previous message; All means that
	// there are too many to name, or that this is the first message. Listed means that services were added or removed.
	Changed []model.ServiceName `json:"changed,omitempty"`
	All     bool                `json:"all,omitempty"`
	Listed  bool                `json:"listed,omitempty"`
}

// familyState is the state of the proxy in one IP family.
type familyState struct {
	Family string `json:"family"`
	// The times when the latest change arrived, when the oldest change arrived that is not applied yet, and when
	// changes were last applied; absent if there is none.
	LastQueued    time.Time `json:"lastQueued,omitzero"`
	OldestPending time.Time `json:"oldestPending,omitzero"`
	LastApplied   time.Time `json:"lastApplied,omitzero"`
	Healthy       bool      `json:"healthy"`
}

// repairs has the repairs of changes by others.
type repairs struct {
	Total int `json:"total"`
	// Last are the last ones, the latest first.
	Last []repair `json:"last"`
}

// repair is a repair or a failed attempt.
type repair struct {
	At     time.Time `json:"at"`
	Family string    `json:"family"`
	Error  string    `json:"error,omitempty"`
}

const (
	maxChangedNamed = 100
	maxEventsSent   = 100
)

// state returns the state with the events after a number.
func (p *Page) state(v *view, after uint64) *pageState {
	s := &pageState{
		Revision: v.snapshot.Revision(), Node: v.snapshot.Node(), Services: v.snapshot.NumServices(),
		Endpoints: v.snapshot.NumEndpoints(), Sync: v.sync, Failing: len(v.failing), Families: []familyState{},
		Events: []event{},
	}
	if h := p.opts.Health; h != nil {
		s.Phase = h.Phase().String()
		for _, f := range model.Families() {
			if d := h.Family(f); d != (health.Family{Healthy: true}) {
				s.Families = append(s.Families,
					familyState{f.String(), d.LastQueued.UTC(), d.OldestPending.UTC(), d.LastApplied.UTC(), d.Healthy})
			}
		}
	}
	for _, e := range v.events {
		if e.Number > after && len(s.Events) < maxEventsSent {
			s.Events = append(s.Events, e)
		}
	}
	if r, ok := v.backend.(sink.Repairer); ok {
		last, total := r.Repairs()
		s.Repairs = &repairs{Total: total, Last: []repair{}}
		for _, one := range last {
			out := repair{At: one.At.UTC(), Family: one.Family.String()}
			if one.Err != nil {
				out.Error = shorten(one.Err.Error())
			}
			s.Repairs.Last = append(s.Repairs.Last, out)
		}
	}
	return s
}

// message returns what is new since an earlier view, nil if there was none.
func (p *Page) message(before, now *view) *pageState {
	if before == nil {
		s := p.state(now, 0)
		s.All, s.Listed = true, true
		return s
	}
	after := uint64(0)
	if len(before.events) > 0 {
		after = before.events[0].Number
	}
	s := p.state(now, after)
	for c := range now.snapshot.ChangesSince(before.snapshot) {
		s.Listed = s.Listed || c.Old == nil || c.New == nil
		if len(s.Changed) == maxChangedNamed {
			s.All = true
			if s.Listed {
				break
			}
			continue
		}
		s.Changed = append(s.Changed, c.Name)
	}
	s.All = s.All || len(before.failing) > 0 || len(now.failing) > 0
	return s
}
