package health

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// status is the body of the answers.
type status struct {
	LastUpdated      time.Time               `json:"lastUpdated"`
	CurrentTime      time.Time               `json:"currentTime"`
	NodeEligible     *bool                   `json:"nodeEligible,omitempty"`
	NodeFound        *bool                   `json:"nodeFound,omitempty"` // false, or nil
	AwaitingNodeCIDR bool                    `json:"awaitingNodeCIDR,omitempty"`
	Disconnected     time.Time               `json:"disconnectedSince,omitzero"`
	Restored         time.Time               `json:"restoredStateFrom,omitzero"`
	WentBack         time.Time               `json:"wentBack,omitzero"`
	Healthy          bool                    `json:"healthy"`
	Status           map[string]familyStatus `json:"status,omitempty"`
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// status returns the body for the proxy alone, without the node.
func (p *Proxy) status(now time.Time) status {
	s := status{CurrentTime: now, Healthy: true, Status: map[string]familyStatus{},
		AwaitingNodeCIDR: p.Phase() == AwaitingNodeCIDR,
		Disconnected:     p.DisconnectedSince(), Restored: p.RestoredFrom(), WentBack: p.WentBack()}
	if p.NodeMissing() {
		s.NodeFound = new(bool)
	}
	for _, f := range model.Families() {
		h := p.familyAt(f, now)
		if h.LastApplied.IsZero() {
			continue
		}
		s.Status[f.String()] = familyStatus{LastUpdated: h.LastApplied, Healthy: h.Healthy}
		s.Healthy = s.Healthy && h.Healthy
		if h.LastApplied.After(s.LastUpdated) {
			s.LastUpdated = h.LastApplied
		}
	}
	return s
}

// Healthz returns the handler of /healthz: 200 if the proxy is healthy, the node eligible, and every family has been
// applied since the start, see [Proxy.SetFamilies]; otherwise 503. The body is a JSON object with lastUpdated,
// currentTime, nodeEligible, healthy (the proxy alone) and status, by family; with nodeFound, false, while there is no
// Node of this node's name; with awaitingNodeCIDR while the proxy waits for podCIDRs; with disconnectedSince while it
// has no connection to the source of its state; and, if the source is a server, with restoredStateFrom, the time of a
// state from a file, while the proxy has had no other since its start, and with wentBack, the time at which it last
// took a state that may be older than the one before. lastUpdated is the current time if the answer is 200, as clients
// expect, otherwise the time when something was last applied.
func (p *Proxy) Healthz() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s := p.status(time.Now())
		eligible := !p.notEligible.Load() && !s.AwaitingNodeCIDR
		s.NodeEligible = &eligible
		s.answer(w, s.Healthy && eligible && p.serves(), p.healthz)
	})
}

// Livez returns the handler of /livez: 200 if the proxy is healthy, otherwise 503. The body is that of Healthz without
// nodeEligible.
func (p *Proxy) Livez() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s := p.status(time.Now())
		s.answer(w, s.Healthy, p.livez)
	})
}

func (s status) answer(w http.ResponseWriter, ok bool, total *prometheus.CounterVec) {
	code := http.StatusServiceUnavailable
	if ok {
		code = http.StatusOK
		s.LastUpdated = s.CurrentTime
	}
	total.WithLabelValues(strconv.Itoa(code)).Inc()
	body, _ := json.Marshal(s) // no value of the type fails
	writeJSON(w, code, body)
}
