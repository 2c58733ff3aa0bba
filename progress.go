package kubeproxy

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/health"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// ProgressOptions configures a [Progress]. The zero value is usable.
type ProgressOptions struct {
	// Families are those that the state works out. Default: both.
	Families []model.Family
	// Health, if given, is kept up to date.
	Health *health.Proxy
	// Metrics, if given, gets the metrics until Close. See the package documentation for the list.
	Metrics prometheus.Registerer
}

// Progress derives health and metrics from what happens in a loop that feeds a sink. [Run] has one. Programs with a
// loop of their own call its methods in this order:
//
//	Changed, Queued      objects came, and localstate.State took them
//	Flushed              State.Flush handed over what differs
//	Synced or Unchanged  Sync returned, or there was nothing to call it for
//
// Changed and Queued may be called from any goroutine, under the lock that guards the State; Flushed too, under the
// same lock. Synced and Unchanged come from the goroutine that calls Flushed.
type Progress struct {
	health     *health.Proxy
	metrics    *metrics
	unregister func()
	waves      []*familyWave
}

// familyWave is what of one family has been handed to the sink and is not known to be applied.
type familyWave struct {
	family    model.Family
	concerned bool
	triggers  []time.Time
}

// maxTriggers bounds what is remembered while Syncs fail.
const maxTriggers = 10000

// NewProgress returns a Progress, and registers its metrics until Close.
func NewProgress(opts ProgressOptions) (*Progress, error) {
	p := &Progress{health: opts.Health, metrics: newMetrics()}
	if p.health == nil {
		p.health = health.New(health.Options{})
	}
	for _, f := range (localstate.Options{Families: opts.Families}).EnabledFamilies() {
		p.waves = append(p.waves, &familyWave{family: f})
	}
	var err error
	if p.unregister, err = p.metrics.register(opts.Metrics); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return p, nil
}

// Close unregisters the metrics.
func (p *Progress) Close() { p.unregister() }

// Changed notes that an object came in which something is new: State.Apply says so.
func (p *Progress) Changed(object any) {
	switch object.(type) {
	case *corev1.Service:
		p.metrics.services.total.Inc()
	case *discoveryv1.EndpointSlice:
		p.metrics.endpoints.total.Inc()
	}
}

// Queued notes what is waiting to be handed over, after something came in.
func (p *Progress) Queued(pending localstate.Pending) {
	now := time.Now()
	for _, w := range p.waves {
		if pending.Concerns(w.family) {
			p.health.Queued(w.family, now)
			p.metrics.lastQueued.WithLabelValues(w.family.String()).Set(seconds(now))
		}
	}
	p.metrics.setPending(pending)
}

// Flushed notes what was handed to the sink.
func (p *Progress) Flushed(changes localstate.Changes, noLocal localstate.NoLocalEndpoints) {
	p.metrics.setPending(localstate.Pending{})
	for _, w := range p.waves {
		w.concerned = w.concerned || changes.Concerns(w.family)
		w.triggers = append(w.triggers, changes.Triggers(w.family)...)
		w.triggers = w.triggers[:min(len(w.triggers), maxTriggers)]
		p.health.Flushed(w.family)
		p.metrics.setNoLocal(w.family, noLocal)
	}
}

// Unchanged notes that what was handed over made no difference, so that Sync is not called.
func (p *Progress) Unchanged() {
	for _, w := range p.waves {
		if !w.concerned {
			p.health.Unchanged(w.family)
		}
	}
}

// Synced notes the outcome of a Sync. full means that it was the first, or a resync, if only of what had failed. A Sync
// that failed for one family has succeeded for the other, and one that failed for single service ports has succeeded.
func (p *Progress) Synced(full bool, start, end time.Time, err error) {
	failed4, failed6 := sink.FailedFamilies(err)
	for _, w := range p.waves {
		if w.family == model.IPv4 && failed4 || w.family == model.IPv6 && failed6 {
			w.concerned = true
			continue
		}
		if !full && !w.concerned {
			p.health.Unchanged(w.family)
			continue
		}
		p.health.Applied(w.family, end)
		p.metrics.synced(w.family, full, start, end, w.triggers)
		w.concerned, w.triggers = false, nil
	}
}
