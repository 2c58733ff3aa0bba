package page

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

func (p *Page) serveFlow(w http.ResponseWriter, r *http.Request) {
	var answer *flowAnswer
	var status int
	var err error
	switch {
	case !withSlot(r.Context(), p.working, func() { answer, status, err = p.flow(r.FormValue("q")) }):
	case err != nil:
		http.Error(w, err.Error(), status)
	default:
		writeJSON(w, answer)
	}
}

// flowAnswer is the oracle's answer with the first maxEndpointsShown endpoints of each outcome.
type flowAnswer struct {
	*oracle.Answer
	// AppliedAt is when the state that the answer is about was last applied.
	AppliedAt time.Time `json:"appliedAt"`
	// More has the numbers of endpoints that are left out, of the outcome and of each alternative; nil if none are.
	More []int `json:"more,omitempty"`
}

func newFlowAnswer(a *oracle.Answer, at time.Time) *flowAnswer {
	out := &flowAnswer{Answer: a, AppliedAt: at, More: make([]int, 1+len(a.Outcome.AlsoAllowed))}
	outcomes := []*oracle.Outcome{&a.Outcome}
	for i := range a.Outcome.AlsoAllowed {
		outcomes = append(outcomes, &a.Outcome.AlsoAllowed[i])
	}
	any := false
	for i, o := range outcomes {
		if more := len(o.Endpoints) - maxEndpointsShown; more > 0 {
			o.Endpoints, out.More[i], any = o.Endpoints[:maxEndpointsShown], more, true
		}
	}
	if !any {
		out.More = nil
	}
	return out
}

// flow returns what happens to a packet, or an error with its HTTP status. The answer goes by what is applied: if the
// last Sync failed in the packet's family, that is an older state.
func (p *Page) flow(question string) (*flowAnswer, int, error) {
	v := p.view()
	if v.sync == nil {
		return nil, http.StatusServiceUnavailable, errors.New("nothing has been applied yet")
	}
	ask := func(s *sink.Snapshot) (*oracle.Answer, int, error) {
		o, err := oracle.OfSnapshot(s, p.opts.Config())
		if err != nil {
			return nil, http.StatusInternalServerError, err
		}
		a, err := o.Ask(question)
		return a, http.StatusBadRequest, err
	}
	answer, status, err := ask(v.snapshot)
	if err != nil {
		return nil, status, err
	}
	family := model.FamilyOf(answer.Outcome.Flow.Destination.Addr())
	applied := v.applied.At(family)
	if applied.snapshot == nil {
		return nil, http.StatusServiceUnavailable,
			fmt.Errorf("nothing has been applied yet in %v: %s", family, v.sync.Error)
	}
	if applied.snapshot != v.snapshot {
		if answer, status, err = ask(applied.snapshot); err != nil {
			return nil, status, err
		}
	}
	if v.sync.failed.Has(family) {
		answer.Notes = append(answer.Notes, "the last Sync failed, so this is what was applied before: "+v.sync.Error)
	}
	switch p := v.problems.get(answer.Outcome.Port.Service); p.Status {
	case statusFailing:
		answer.Notes = append(answer.Notes, "the backend refused a part of this service: "+p.Text)
	case statusUnserved:
		answer.Notes = append(answer.Notes, "the backend does not serve all of this service: "+v.text(p))
	}
	return newFlowAnswer(answer, applied.at), http.StatusOK, nil
}
