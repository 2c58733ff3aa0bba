package page

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
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
	// Source says what is wrong with where the state comes from; nil if nothing is, or without Options.Health.
	Source *sourceState `json:"source,omitempty"`
	// Failing is the number of services that the backend could not apply.
	Failing  int          `json:"failing"`
	Problems problemState `json:"problems"`
	Totals   totals       `json:"totals"`
	// Busiest are the services that changed most often since BusySince, which is five to ten minutes ago.
	Busiest   []busyService `json:"busiest"`
	BusySince time.Time     `json:"busySince,omitzero"`
	Repairs   *repairs      `json:"repairs,omitempty"`
	// Events are the last ones, the latest first; in a message only the new ones.
	Events []event `json:"events"`
	// Syncs are the last ones, the latest last; in a message only the new ones.
	Syncs []syncPoint `json:"syncs"`

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

// sourceState says what is wrong with where the state comes from: see [health.Proxy].
type sourceState struct {
	// DisconnectedSince is the time since which nothing has come from there, RestoredFrom the time of the state if it
	// comes from a file, and WentBack when a state was last taken that may be older than the one before.
	DisconnectedSince time.Time `json:"disconnectedSince,omitzero"`
	RestoredFrom      time.Time `json:"restoredFrom,omitzero"`
	WentBack          time.Time `json:"wentBack,omitzero"`
}

// problemState is what is wrong with services: the number of those that have a problem, of each status, and the worst
// ones with the reasons.
type problemState struct {
	Total    int       `json:"total"`
	Failing  int       `json:"failing"`
	Unserved int       `json:"unserved"`
	Empty    int       `json:"empty"`
	First    []problem `json:"first"`
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
	maxChangedNamed  = 100
	maxFirstProblems = 10
	maxEventsSent    = 100
)

// state returns the state with the events and Syncs after these numbers.
func (p *Page) state(v *view, after, syncsAfter uint64) *pageState {
	n := v.problems.counts
	s := &pageState{
		Revision: v.snapshot.Revision(), Node: v.snapshot.Node(), Services: v.snapshot.NumServices(),
		Endpoints: v.snapshot.NumEndpoints(), Sync: v.sync, Failing: n[0], Families: []familyState{},
		Problems: problemState{v.problems.len(), n[0], n[1], n[2], v.firstProblems(maxFirstProblems)},
		Totals:   v.totals, Busiest: v.busiest, BusySince: v.busySince.UTC(), Events: []event{}, Syncs: []syncPoint{},
	}
	for _, one := range v.syncs {
		if one.Number > syncsAfter {
			s.Syncs = append(s.Syncs, one)
		}
	}
	if h := p.opts.Health; h != nil {
		source := sourceState{h.DisconnectedSince().UTC(), h.RestoredFrom().UTC(), h.WentBack().UTC()}
		if source != (sourceState{}) {
			s.Source = &source
		}
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
		s := p.state(now, 0, 0)
		s.All, s.Listed = true, true
		return s
	}
	var after, syncsAfter uint64
	if len(before.events) > 0 {
		after = before.events[0].Number
	}
	if n := len(before.syncs); n > 0 {
		syncsAfter = before.syncs[n-1].Number
	}
	s := p.state(now, after, syncsAfter)
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
	s.All = s.All || before.told != now.told
	return s
}
